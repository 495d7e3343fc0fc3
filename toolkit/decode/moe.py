"""Mixtures of experts with ordinary attention.

Each function states what the modelling file of transformers 5.24 (or the model's own repository, where
marked remote) builds for its family. Score-correction biases that are buffers there are not counted.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.decode.common import Fields, experts_where, heads, mlp_kinds, routed, trunk, window
from toolkit.decode.reader import Reader, Unsupported

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token")


def _base(
    read: Reader,
    qkv_bias: str | bool = False,
    output_bias: str | bool = False,
    qk_norm: str = "none",
    width: str = "moe_intermediate_size",
) -> Fields:
    """Attention and routed experts; dense layers, where there are any, have ``intermediate_size``."""
    fields = trunk(read)
    fields |= heads(read, fields["hidden_size"])
    fields |= routed(read, EXPERTS, CHOSEN, (width,))
    fields |= {
        "attention_bias": read.flag(qkv_bias) if isinstance(qkv_bias, str) else qkv_bias,
        "attention_output_bias": read.flag(output_bias) if isinstance(output_bias, str) else output_bias,
        "qk_norm": qk_norm,
        "intermediate_size": read.count("intermediate_size", default=fields["moe_intermediate_size"]),
    }
    return fields


def shared_experts(read: Reader, fields: Fields, *keys: str, width: int | None = None) -> Fields:
    """Shared experts: as many as the key says, each as wide as a routed one unless ``width`` is given."""
    number = read.count(*keys, default=0, least=0)
    each = fields["moe_intermediate_size"] if width is None else width
    return {"num_shared_experts": number, "shared_expert_intermediate_size": number * each}


def _mixtral(read: Reader) -> Fields:
    fields = _base(read, width="intermediate_size")
    return fields | window(read, fields["num_hidden_layers"])


def _qwen_moe(read: Reader, fields: Fields) -> Fields:
    layers = fields["num_hidden_layers"]
    step = read.count("decoder_sparse_step", default=1)
    fields["mlps"] = experts_where(layers, 0, step, read.items("mlp_only_layers", int))
    if "D" in fields["mlps"]:
        fields["intermediate_size"] = read.count("intermediate_size", core=True)
    return fields | window(read, layers)


def _qwen2_moe(read: Reader) -> Fields:
    fields = _qwen_moe(read, _base(read, qkv_bias="qkv_bias"))
    width = read.count("shared_expert_intermediate_size")
    return fields | {"num_shared_experts": 1, "shared_expert_intermediate_size": width, "shared_expert_gate": True}


def _qwen3_moe(read: Reader) -> Fields:
    return _qwen_moe(read, _base(read, "attention_bias", "attention_bias", "head"))


def _olmoe(read: Reader) -> Fields:
    return _base(read, "attention_bias", "attention_bias", "full", width="intermediate_size")


def _phimoe(read: Reader) -> Fields:
    fields = _base(read, "attention_bias", "attention_bias", width="intermediate_size")
    fields |= window(read, fields["num_hidden_layers"])
    return fields | {"norm_bias": True, "lm_head_bias": read.flag("lm_head_bias")}


def _gpt_oss(read: Reader) -> Fields:
    fields = _base(read, "attention_bias", "attention_bias", width="intermediate_size")
    fields |= window(read, fields["num_hidden_layers"], 2)
    return fields | {"attention_sinks": True, "router_bias": True, "expert_bias": True, "fused_gate_up": True}


def _granitemoe(read: Reader) -> Fields:
    fields = _base(read, "attention_bias", "attention_bias", width="intermediate_size")
    width = read.count("shared_intermediate_size", default=0, least=0)
    shared = {"num_shared_experts": int(width > 0), "shared_expert_intermediate_size": width}
    return fields | shared | {"fused_gate_up": True}


def _first_dense(read: Reader, fields: Fields, *shared: str, first: int = 0) -> Fields:
    """Dense layers first (``first`` of them unless a key says how many), experts after; shared experts."""
    layers = fields["num_hidden_layers"]
    key = "first_k_dense_replace" if read.raw("num_dense_layers") is None else "num_dense_layers"
    first = read.count(key, default=read.default("first_k_dense_replace", "num_dense_layers") or first, least=0)
    fields["mlps"] = mlp_kinds(read, layers, first)
    if "D" in fields["mlps"]:
        fields["intermediate_size"] = read.count("intermediate_size", core=True)
    return fields | shared_experts(read, fields, *shared)


def _glm4_moe(read: Reader) -> Fields:
    norm = "head" if read.flag("use_qk_norm") else "none"
    return _first_dense(read, _base(read, "attention_bias", False, norm), "n_shared_experts")


def _dots1(read: Reader) -> Fields:
    fields = _base(read, "attention_bias", "attention_bias", "head")
    return _first_dense(read, fields, "n_shared_experts") | window(read, fields["num_hidden_layers"])


def _solar_open(read: Reader) -> Fields:
    return _first_dense(read, _base(read, "attention_bias", False), "n_shared_experts")


def _hy_v3(read: Reader) -> Fields:
    fields = _base(read, "attention_bias", "attention_bias", "head")
    if read.flag("mlp_bias"):
        raise Unsupported("hy_v3 with mlp_bias")
    return _first_dense(read, fields, "num_shared_experts", first=1)


def _mellum(read: Reader) -> Fields:
    fields = _base(read, "attention_bias", "attention_bias", "head")
    fields["mlps"] = mlp_kinds(read, fields["num_hidden_layers"], 0)
    return fields | window(read, fields["num_hidden_layers"])


def _exaone_moe(read: Reader) -> Fields:
    fields = _first_dense(read, _base(read, qk_norm="head"), "num_shared_experts")
    return fields | window(read, fields["num_hidden_layers"], 4)


def _afmoe(read: Reader) -> Fields:
    fields = _base(read, "attention_bias", "attention_bias", "head")
    # the gate has no bias of its own where query, key and value have one
    if fields["attention_bias"]:
        raise Unsupported("afmoe with attention_bias")
    fields = _first_dense(read, fields, "num_shared_experts")
    fields |= {"attention_output_gate": True, "norms_per_layer": 4, "router_bias": True}
    return fields | window(read, fields["num_hidden_layers"], 4)


def _minimax_m2(read: Reader) -> Fields:
    return _base(read, qk_norm="full", width="intermediate_size")


def _llama4(read: Reader) -> Fields:
    fields = _base(read, "attention_bias", "attention_bias", width="intermediate_size")
    layers = fields["num_hidden_layers"]
    chosen = read.items("moe_layers", int)
    if chosen is None:
        step = read.count("interleave_moe_layer_step", default=1)
        chosen = list(range(step - 1, layers, step))
    sparse = set(chosen)
    return fields | {
        "mlps": "".join("E" if layer in sparse else "D" for layer in range(layers)),
        "intermediate_size": read.count("intermediate_size_mlp"),
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": fields["moe_intermediate_size"],
    }


def _deepseek_v1(read: Reader) -> Fields:
    """Remote: DeepSeekMoE 16B, ordinary attention."""
    fields = _base(read, "attention_bias", "attention_bias")
    fields = _first_dense(read, fields, "n_shared_experts")
    frequency = read.count("moe_layer_freq", default=1)
    if frequency > 1:
        fields["mlps"] = "".join("E" if m == "E" and i % frequency == 0 else "D" for i, m in enumerate(fields["mlps"]))
    return fields


def _bailing_moe(read: Reader) -> Fields:
    """Remote: Ling and Ring."""
    norm = "head" if read.flag("use_qk_norm") else "none"
    fields = _base(read, read.flag("use_qkv_bias") or read.flag("use_bias"), "use_bias", norm)
    return _first_dense(read, fields, "num_shared_experts") | {"fused_qkv": True}


FAMILIES: dict[str, Callable[[Reader], Fields]] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
    "flex_olmo": _olmoe,
    "phimoe": _phimoe,
    "gpt_oss": _gpt_oss,
    "granitemoe": _granitemoe,
    "granitemoeshared": _granitemoe,
    "glm4_moe": _glm4_moe,
    "sarvam_moe": _glm4_moe,
    "dots1": _dots1,
    "solar_open": _solar_open,
    "hy_v3": _hy_v3,
    "mellum": _mellum,
    "exaone_moe": _exaone_moe,
    "afmoe": _afmoe,
    "minimax_m2": _minimax_m2,
    "llama4_text": _llama4,
    "deepseek": _deepseek_v1,
    "bailing_moe": _bailing_moe,
}
