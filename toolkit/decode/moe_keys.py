"""Mixtures of experts whose configs have names of their own for what others call ``num_experts`` and its kin.

Each function states what the modelling file of transformers 5.24 builds for its family.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.decode.common import Fields, heads, routed, trunk
from toolkit.decode.moe import shared_experts
from toolkit.decode.reader import Reader, Unsupported


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
    return fields | {"router_bias": True} | shared_experts(read, fields, "moe_num_shared_experts")


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
    return fields | shared_experts(read, fields, "moe_num_shared_experts")


FAMILIES: dict[str, Callable[[Reader], Fields]] = {
    "ernie4_5_moe": _ernie4_5_moe,
    "hunyuan_v1_moe": _hunyuan_moe,
    "dbrx": _dbrx,
    "aria_text": _aria,
}
