"""Which Hugging Face tensors make up a megatron-core parameter, and how they are joined.

A parameter is one of

==========  =====================================================================================
``whole``   the same tensor under another name
``qkv``     query, key and value interleaved by group: for each key-value head its ``a / g`` query heads, then
            its key, then its value (``a`` query heads, ``g`` key-value heads)
``pair``    gate above up
==========  =====================================================================================

Both of megatron-core 0.16.1's layer specifications are known: the local one and Transformer Engine's, which
keeps norms inside of the product that follows them and numbers grouped experts ``weight0``, ``weight1``, ...
The Hugging Face names are those of files on disk, which hold each expert by itself; transformers 5 stacks them
in memory only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# model_type -> where its experts lie: block, router, gate and up, down; empty for dense models
EXPERTS = {
    "llama": None,
    "mistral": None,
    "qwen2": None,
    "qwen3": None,
    "mixtral": ("block_sparse_moe", ("w1", "w3"), "w2"),
    "qwen2_moe": ("mlp", ("gate_proj", "up_proj"), "down_proj"),
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj"), "down_proj"),
}
FAMILIES = tuple(EXPERTS)
# buffers that old checkpoints hold and no model needs
NOT_WEIGHTS = re.compile(r"rotary_emb\.inv_freq$")


class Pieces(NamedTuple):
    """How a parameter is made (``whole``, ``qkv`` or ``pair``), and of which Hugging Face tensors, in order."""

    how: str
    names: tuple[str, ...]


_OUTSIDE = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
_WHOLE = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
# of families with an expert that all tokens see: what there is in the place of its parameters
SHARED = {
    "qwen2_moe": {
        "mlp.shared_experts.linear_fc1.weight": (
            "mlp.shared_expert.gate_proj.weight",
            "mlp.shared_expert.up_proj.weight",
        ),
        "mlp.shared_experts.linear_fc2.weight": ("mlp.shared_expert.down_proj.weight",),
        "mlp.shared_experts.gate_weight": ("mlp.shared_expert_gate.weight",),
    },
}
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_QKV = re.compile(r"self_attention\.linear_qkv\.(weight|bias)")
_EXPERT = re.compile(
    r"mlp\.experts\.(?:local_experts\.(?P<sequential>\d+)\.linear_fc(?P<a>[12])\.weight"
    r"|linear_fc(?P<b>[12])\.weight(?P<grouped>\d+))"
)


def pieces(name: str, family: str) -> Pieces | None:
    """The tensors of one parameter, by its name in the whole model; None for a parameter that has none there."""
    if name in _OUTSIDE:
        return Pieces("whole", (_OUTSIDE[name],))
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return None
    prefix, rest, experts = f"model.layers.{layer[1]}.", layer[2], EXPERTS[family]
    if match := _QKV.fullmatch(rest):
        return Pieces("qkv", tuple(f"{prefix}self_attn.{letter}_proj.{match[1]}" for letter in "qkv"))
    if rest == "mlp.linear_fc1.weight":
        return Pieces("pair", (f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight"))
    if rest in _WHOLE:
        return Pieces("whole", (prefix + _WHOLE[rest],))
    if shared := SHARED.get(family, {}).get(rest):
        return Pieces("pair" if len(shared) == 2 else "whole", tuple(prefix + one for one in shared))
    if experts is None:
        return None
    block, first, second = experts
    if rest == "mlp.router.weight":
        return Pieces("whole", (f"{prefix}{block}.gate.weight",))
    if match := _EXPERT.fullmatch(rest):
        expert = f"{prefix}{block}.experts.{match['sequential'] or match['grouped']}."
        if (match["a"] or match["b"]) == "2":
            return Pieces("whole", (f"{expert}{second}.weight",))
        return Pieces("pair", tuple(f"{expert}{part}.weight" for part in first))
    return None
