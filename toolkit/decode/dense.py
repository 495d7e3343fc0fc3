"""Dense decoders whose layers are attention and one MLP, by their few differences from Llama.

Each row states what the modelling file of transformers 5.24 (or the model's own repository, where marked
remote) builds. A text is the key that switches a bias on; true and false are fixed for the family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from toolkit.decode.common import Fields, bias, heads, trunk, window
from toolkit.decode.reader import Reader, Unsupported

Extra = Callable[[Reader, Fields], Fields]


class Dense(NamedTuple):
    """What a family does differently from Llama 2: gated MLP, RMSNorm twice a layer, no biases."""

    qkv_bias: str | bool = False
    output_bias: str | bool = False
    mlp_bias: str | bool = False
    gated: bool = True
    norm_bias: bool = False
    norms: int = 2
    final_norm: bool = True
    qk_norm: str = "none"
    head_dim: bool = True  # whether the family reads head_dim
    fused_qkv: bool = False
    fused_gate_up: bool = False
    window_period: int = 0  # every n-th layer sees everything
    window: bool = True
    tie: bool | None = None  # remote families: the default of their own configuration class
    extra: Extra | None = None


def decode(read: Reader, family: Dense) -> Fields:
    """The fields of a ModelSpec for one of the FAMILIES."""
    fields = trunk(read, tie=family.tie)
    fields |= heads(read, fields["hidden_size"], head_dim=family.head_dim)
    fields |= {
        "intermediate_size": read.count("intermediate_size", "ff_intermediate_size", core=True),
        "gated_mlp": family.gated,
        "attention_bias": bias(read, family.qkv_bias),
        "attention_output_bias": bias(read, family.output_bias),
        "mlp_bias": bias(read, family.mlp_bias),
        "norm_bias": family.norm_bias,
        "norms_per_layer": family.norms,
        "final_norm": family.final_norm,
        "qk_norm": family.qk_norm,
        "fused_qkv": family.fused_qkv,
        "fused_gate_up": family.fused_gate_up,
    }
    if family.window:
        fields |= window(read, fields["num_hidden_layers"], family.window_period)
    if family.extra:
        fields |= family.extra(read, fields)
    return fields


def _gemma3_window(read: Reader, fields: Fields) -> Fields:
    period = read.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return window(read, fields["num_hidden_layers"], period)


def _apertus(read: Reader, fields: Fields) -> Fields:
    return {"other_layer_parameters": 2}  # the two slopes of xIELU


def _bitnet(read: Reader, fields: Fields) -> Fields:
    return {"other_layer_parameters": fields["hidden_size"] + fields["intermediate_size"]}  # sub-norms


def _diffllama(read: Reader, fields: Fields) -> Fields:
    return {"other_layer_parameters": 4 * fields["head_dim"]}  # four lambda vectors


def _doge(read: Reader, fields: Fields) -> Fields:
    if read.flag("is_moe"):
        raise Unsupported("doge with is_moe")
    groups, width = fields["num_key_value_heads"], fields["num_key_value_heads"] * fields["head_dim"]
    step = groups * width + fields["attention_bias"] * groups  # dt_proj
    return {"other_layer_parameters": 2 * fields["hidden_size"] + groups + step}  # two residual scales, A, dt_proj


def _cohere(read: Reader, fields: Fields) -> Fields:
    return {"qk_norm": "full" if read.flag("use_qk_norm") else "none"}


def _helium(read: Reader, fields: Fields) -> Fields:
    if fields["num_attention_heads"] * fields["head_dim"] != fields["hidden_size"]:
        raise Unsupported("helium whose heads together are not as wide as hidden_size")
    return {}


def _sinks(read: Reader, fields: Fields) -> Fields:
    return {"attention_sinks": True}


def _hyperclovax(read: Reader, fields: Fields) -> Fields:
    return {"norms_per_layer": 4 if read.flag("use_post_norm") else 2}


def _stablelm(read: Reader, fields: Fields) -> Fields:
    return {
        "qk_norm": "full" if read.flag("qk_layernorm") else "none",  # one norm per head
        "norms_per_layer": 1 if read.flag("use_parallel_residual") else 2,
    }


def _phi(read: Reader, fields: Fields) -> Fields:
    return {"qk_norm": "head" if read.flag("qk_layernorm") else "none", "qk_norm_bias": True, "lm_head_bias": True}


def _persimmon(read: Reader, fields: Fields) -> Fields:
    return {"qk_norm": "head" if read.flag("qk_layernorm") else "none", "qk_norm_bias": True}


def _qwen(read: Reader, fields: Fields) -> Fields:
    # Qwen-7B: intermediate_size counts gate and up together; query, key and value always have a bias
    return {"intermediate_size": max(fields["intermediate_size"] // 2, 1), "attention_bias": True}


_ALL = "attention_bias"
LLAMA = Dense(_ALL, _ALL, "mlp_bias")
_OLMO2 = Dense(_ALL, _ALL, qk_norm="full", window_period=4)
_GEMMA2 = Dense(_ALL, _ALL, norms=4, window_period=2)

FAMILIES: dict[str, Dense] = {
    "llama": LLAMA,
    "mistral": Dense(),
    "ministral": Dense(window_period=4),
    "ministral3": Dense(),
    "qwen2": Dense(qkv_bias=True),
    "qwen3": Dense(_ALL, _ALL, qk_norm="head"),
    "gemma": Dense(_ALL, _ALL),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2._replace(qk_norm="head", window=False, extra=_gemma3_window),
    "vaultgemma": _GEMMA2._replace(norms=2),
    "phi3": Dense(fused_qkv=True, fused_gate_up=True),
    "olmo": Dense(_ALL, _ALL, norms=0, final_norm=False),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "smollm3": Dense(_ALL, _ALL, "mlp_bias"),
    "cohere": Dense(_ALL, _ALL, norms=1, extra=_cohere),
    "cohere2": Dense(_ALL, _ALL, norms=1, window_period=4),
    "granite": Dense(_ALL, _ALL, "mlp_bias"),
    "granite_swa": Dense(_ALL, _ALL, "mlp_bias", extra=_sinks),
    "helium": Dense(_ALL, False, "mlp_bias", extra=_helium),
    "glm": Dense(_ALL, fused_gate_up=True),
    "glm4": Dense(_ALL, norms=4, fused_gate_up=True),
    "exaone": LLAMA,
    "exaone4": Dense(qk_norm="head", window_period=4),
    "seed_oss": Dense(_ALL, "attention_out_bias", "mlp_bias"),
    "ernie4_5": Dense("use_bias", "use_bias", "use_bias"),
    "arcee": Dense(_ALL, _ALL, "mlp_bias", gated=False),
    "apertus": Dense(_ALL, _ALL, gated=False, qk_norm="head", extra=_apertus),
    "bitnet": Dense(_ALL, _ALL, extra=_bitnet),
    "diffllama": Dense(_ALL, _ALL, extra=_diffllama),
    "doge": Dense(_ALL, _ALL, "mlp_bias", qk_norm="head", extra=_doge),
    "nanochat": Dense(_ALL, _ALL, gated=False, norms=0, final_norm=False),
    "jais2": Dense(_ALL, _ALL, "mlp_bias", gated=False, norm_bias=True),
    "nemotron": Dense(_ALL, _ALL, "mlp_bias", gated=False, norm_bias=True),
    "stablelm": Dense("use_qkv_bias", norm_bias=True, extra=_stablelm),
    "starcoder2": Dense("use_bias", "use_bias", "use_bias", gated=False, norm_bias=True),
    "persimmon": Dense(True, True, True, gated=False, norm_bias=True, head_dim=False, fused_qkv=True, extra=_persimmon),
    "phi": Dense(True, True, True, gated=False, norm_bias=True, norms=1, extra=_phi),
    "hyperclovax": Dense(_ALL, _ALL, "mlp_bias", extra=_hyperclovax),
    "hunyuan_v1_dense": Dense(_ALL, _ALL, "mlp_bias", qk_norm="head"),
    "internlm3": Dense("qkv_bias", "bias", "bias"),
    "iquestcoder": LLAMA,
    # remote: the model's own repository
    "internlm2": Dense("bias", "bias", fused_qkv=True, head_dim=False),
    "internlm": Dense("bias", "bias", head_dim=False),
    "baichuan": Dense(fused_qkv=True, head_dim=False),
    "minicpm": Dense(_ALL, _ALL, tie=True),
    "qwen": Dense(fused_qkv=True, head_dim=False, extra=_qwen),
    "orion": Dense(norm_bias=True, head_dim=False),
    "xverse": Dense(head_dim=False),
    "aquila": Dense(head_dim=False),
    "yi": Dense(head_dim=False),
    "phi3small": Dense(True, True, True, norm_bias=True, fused_qkv=True, fused_gate_up=True, tie=True),
}
