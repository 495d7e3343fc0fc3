"""Multi-head latent attention: DeepSeek-V2 and V3, their heirs, and dense models that attend as they do.

Each function states what the modelling file of transformers 5.24 builds for its family.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.decode.common import Fields, mlp_kinds, routed, trunk
from toolkit.decode.moe import CHOSEN, EXPERTS, shared_experts
from toolkit.decode.reader import MOST, Reader, Unsupported


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
    fields |= routed(read, EXPERTS, CHOSEN, ("moe_intermediate_size",))
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
    return fields | shared_experts(read, fields, "n_shared_experts", "num_shared_experts")


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


FAMILIES: dict[str, Callable[[Reader], Fields]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "glm4_moe_lite": _deepseek,
    "sarvam_mla": _deepseek,
    "deepseek_v32": _indexed,
    "glm_moe_dsa": _indexed,
    "minicpm3": _latent_dense,
    "youtu": _latent_dense,
}
