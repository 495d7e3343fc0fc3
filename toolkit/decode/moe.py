"""Mixtures of experts with ordinary or latent attention.

Each function states what the modelling file of transformers 5.24 (or the model's own repository, where
marked remote) builds for its family. Score-correction biases that are buffers there are not counted.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.decode.common import Fields, experts_where, heads, mlp_kinds, routed, trunk, window
from toolkit.decode.reader import MOST, Reader, Unsupported

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token")


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
    fields |= routed(read, _EXPERTS, _CHOSEN, (width,))
    fields |= {
        "attention_bias": read.flag(qkv_bias) if isinstance(qkv_bias, str) else qkv_bias,
        "attention_output_bias": read.flag(output_bias) if isinstance(output_bias, str) else output_bias,
        "qk_norm": qk_norm,
        "intermediate_size": read.count("intermediate_size", default=fields["moe_intermediate_size"]),
    }
    return fields


def _shared(read: Reader, fields: Fields, *keys: str, width: int | None = None) -> Fields:
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


def latent_attention(read: Reader) -> Fields:
    """Multi-head latent attention; ``head_dim`` is that of queries and keys, with and without rotary part."""
    number = read.count("num_attention_heads", core=True)
    nope, rope = read.count("qk_nope_head_dim"), read.count("qk_rope_head_dim")
    read.raw("num_key_value_heads", "head_dim")  # stated by publishers, without effect
    rank = read.raw("q_lora_rank")
    if rank is None and "q_lora_rank" not in read.values:
        rank = read.default("q_lora_rank")
        if rank is not None:
            read.assume("q_lora_rank", rank)
    return {
        "num_attention_heads": number,
        "num_key_value_heads": number,
        "head_dim": nope + rope,
        # 0 is how a format without null says that there is none
        "q_lora_rank": 0 if rank is None else read.checked(rank, "q_lora_rank", 0, MOST),
        "kv_lora_rank": read.count("kv_lora_rank", core=True),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": read.count(
            "v_head_dim", default=read.default("v_head_dim") or read.count("hidden_size") // number
        ),
        "attention_bias": read.flag("attention_bias"),
    }


def _deepseek(read: Reader) -> Fields:
    """DeepSeek-V2 and V3 and their heirs: latent attention, dense first layers, shared experts."""
    fields = trunk(read) | latent_attention(read)
    fields |= routed(read, _EXPERTS, _CHOSEN, ("moe_intermediate_size",))
    layers = fields["num_hidden_layers"]
    # glm4_moe_lite has one dense layer unless mlp_layer_types says otherwise
    known = 1 if read.family == "glm4_moe_lite" else read.default("first_k_dense_replace") or 0
    first = read.count("first_k_dense_replace", default=known, least=0)
    fields["mlps"] = mlp_kinds(read, layers, first)
    frequency = read.count("moe_layer_freq", default=1)
    if frequency > 1:
        fields["mlps"] = "".join("E" if i >= first and i % frequency == 0 else "D" for i in range(layers))
    fields["intermediate_size"] = read.count(
        "intermediate_size", **({} if "D" in fields["mlps"] else {"default": fields["moe_intermediate_size"]})
    )
    if read.flag("mlp_bias"):
        raise Unsupported(f"{read.family} with mlp_bias")
    return fields | _shared(read, fields, "n_shared_experts", "num_shared_experts")


def _indexed(read: Reader) -> Fields:
    """DeepSeek-V3.2 and GLM-5: latent attention with a light indexer that picks the keys to attend to."""
    fields = _deepseek(read)
    kinds = read.items("indexer_types", str)
    if kinds is not None and set(kinds) != {"full"}:
        raise Unsupported(f"{read.family} with layers that share an indexer")
    number, size, hidden = read.count("index_n_heads"), read.count("index_head_dim"), fields["hidden_size"]
    indexer = fields["q_lora_rank"] * number * size + hidden * size + 2 * size + hidden * number
    return fields | {"other_layer_parameters": indexer}


def _latent_dense(read: Reader) -> Fields:
    """MiniCPM3 and Youtu: latent attention with a dense MLP."""
    fields = trunk(read) | latent_attention(read)
    return fields | {"intermediate_size": read.count("intermediate_size", core=True), "mlp_bias": read.flag("mlp_bias")}


def _first_dense(read: Reader, fields: Fields, *shared: str, first: int = 0) -> Fields:
    """Dense layers first (``first`` of them unless a key says how many), experts after; shared experts."""
    layers = fields["num_hidden_layers"]
    key = "first_k_dense_replace" if read.raw("num_dense_layers") is None else "num_dense_layers"
    first = read.count(key, default=read.default("first_k_dense_replace", "num_dense_layers") or first, least=0)
    fields["mlps"] = mlp_kinds(read, layers, first)
    if "D" in fields["mlps"]:
        fields["intermediate_size"] = read.count("intermediate_size", core=True)
    return fields | _shared(read, fields, *shared)


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


def _ernie4_5_moe(read: Reader) -> Fields:
    fields = trunk(read)
    fields |= heads(read, fields["hidden_size"])
    fields |= routed(read, ("moe_num_experts",), ("moe_k",), ("moe_intermediate_size",))
    layers = fields["num_hidden_layers"]
    start, interval = read.count("moe_layer_start_index", least=0), read.count("moe_layer_interval")
    end = read.count("moe_layer_end_index", least=-1)
    end = layers - 1 if end == -1 else end
    biases = read.flag("use_bias")
    if biases:
        raise Unsupported("ernie4_5_moe with use_bias")
    fields["mlps"] = "".join("E" if (i + 1) % interval == 0 and start <= i <= end else "D" for i in range(layers))
    fields["intermediate_size"] = read.count("intermediate_size", core=True)
    # the score correction is a parameter of this family
    return fields | {"router_bias": True} | _shared(read, fields, "moe_num_shared_experts")


def _hunyuan_moe(read: Reader) -> Fields:
    fields = trunk(read)
    fields |= heads(read, fields["hidden_size"])
    for key in ("num_experts", "moe_topk"):  # publishers repeat the number once per layer
        value = read.values.get(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            read.values = read.values | {key: value[0]}
    fields |= routed(read, ("num_experts",), ("moe_topk",), ("intermediate_size",))
    biases = read.flag("attention_bias")
    return fields | {
        "intermediate_size": fields["moe_intermediate_size"],
        "attention_bias": biases,
        "attention_output_bias": biases,
        "qk_norm": "head",
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": fields["moe_intermediate_size"],
    }


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


def _dbrx(read: Reader) -> Fields:
    fields = trunk(read)
    attention, ffn = read.sub("attn_config", "dbrx"), read.sub("ffn_config", "dbrx")
    fields |= heads(read, fields["hidden_size"], head_dim=False)
    fields |= routed(ffn, ("moe_num_experts",), ("moe_top_k",), ("ffn_hidden_size",))
    return fields | {
        "num_key_value_heads": attention.count("kv_n_heads", default=1),
        "intermediate_size": fields["moe_intermediate_size"],
        "fused_qkv": True,
        "unbiased_layer_norm": True,
    }


def _aria(read: Reader) -> Fields:
    fields = trunk(read)
    fields |= heads(read, fields["hidden_size"])
    fields |= routed(read, ("moe_num_experts",), ("moe_topk",), ("intermediate_size",))
    biases = read.flag("attention_bias")
    if read.flag("mlp_bias"):
        raise Unsupported("aria_text with mlp_bias")
    fields |= {"intermediate_size": fields["moe_intermediate_size"]}
    fields |= {"attention_bias": biases, "attention_output_bias": biases}
    return fields | _shared(read, fields, "moe_num_shared_experts")


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
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "glm4_moe_lite": _deepseek,
    "sarvam_mla": _deepseek,
    "deepseek_v32": _indexed,
    "glm_moe_dsa": _indexed,
    "minicpm3": _latent_dense,
    "youtu": _latent_dense,
    "glm4_moe": _glm4_moe,
    "sarvam_moe": _glm4_moe,
    "dots1": _dots1,
    "solar_open": _solar_open,
    "hy_v3": _hy_v3,
    "mellum": _mellum,
    "exaone_moe": _exaone_moe,
    "afmoe": _afmoe,
    "ernie4_5_moe": _ernie4_5_moe,
    "hunyuan_v1_moe": _hunyuan_moe,
    "minimax_m2": _minimax_m2,
    "llama4_text": _llama4,
    "dbrx": _dbrx,
    "aria_text": _aria,
    "deepseek": _deepseek_v1,
    "bailing_moe": _bailing_moe,
}
