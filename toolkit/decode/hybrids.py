"""Mamba beside blocks that are laid out one by one or shared: Nemotron-H and Zamba.

Each function states what the modelling file of transformers 5.24 builds for its family.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.decode.common import Fields, heads, routed, trunk, untied
from toolkit.decode.reader import Reader, Unsupported
from toolkit.decode.state_space import mamba_only, time_step_rank

_PATTERN = {"M": ("M", "-"), "-": ("-", "D"), "*": ("A", "-"), "E": ("-", "E")}

_BLOCKS = {
    "mamba": "M",
    "linear_attention": "M",
    "mlp": "-",
    "attention": "*",
    "full_attention": "*",
    "moe": "E",
}


def _nemotron_h(read: Reader) -> Fields:
    pattern = read.text("hybrid_override_pattern")
    if not pattern:
        blocks = read.items("layers_block_type", str) or read.items("layer_types", str) or []
        pattern = "".join(_BLOCKS.get(block, "?") for block in blocks)
    if not pattern or set(pattern) - set(_PATTERN):
        read.problems.add(
            f"hybrid_override_pattern {pattern[:60]!r} is not a row of M (Mamba), - (MLP), * (attention), E (experts)",
            "give one letter per layer",
        )
        pattern = "M"
    read.values = {"num_hidden_layers": len(pattern)} | read.values
    fields = untied(read, trunk(read))
    if len(pattern) != fields["num_hidden_layers"]:
        read.problems.add(
            f"hybrid_override_pattern has {len(pattern)} letters, num_hidden_layers is {fields['num_hidden_layers']}",
            "they must agree",
        )
        fields["num_hidden_layers"] = len(pattern)
    fields |= heads(read, fields["hidden_size"])
    fields |= {
        "mixers": "".join(_PATTERN[letter][0] for letter in pattern),
        "mlps": "".join(_PATTERN[letter][1] for letter in pattern),
        "norms_per_layer": 1,
        "gated_mlp": False,
        "intermediate_size": read.count("intermediate_size", core="-" in pattern),
        "mlp_bias": read.flag("mlp_bias"),
        "state_size": read.count("ssm_state_size"),
        "conv_kernel": read.count("conv_kernel", "mamba_d_conv"),
        "mamba_num_heads": read.count("mamba_num_heads"),
        "mamba_intermediate_size": read.count("mamba_num_heads") * read.count("mamba_head_dim"),
        "mamba_groups": read.count("n_groups", "mamba_n_groups"),
        "mamba_conv_bias": read.flag("use_conv_bias", "mamba_conv_bias"),
        "mamba_proj_bias": read.flag("use_bias"),
    }
    if "E" in pattern:
        if read.raw("moe_latent_size") is not None or fields["mlp_bias"]:
            raise Unsupported("nemotron_h with moe_latent_size, or with mlp_bias beside experts")
        fields |= routed(read, ("n_routed_experts",), ("num_experts_per_tok",), ("moe_intermediate_size",))
        width = read.count("moe_shared_expert_intermediate_size")
        fields |= {"num_shared_experts": 1, "shared_expert_intermediate_size": width}
    return fields


def _zamba(read: Reader) -> Fields:
    """Mamba layers; every hybrid layer also feeds one shared transformer, which exists once."""
    fields = trunk(read)
    hidden, layers = fields["hidden_size"], fields["num_hidden_layers"]
    kinds = read.items("layers_block_type", str, layers)
    if kinds is None:
        raise Unsupported("zamba without layers_block_type")
    if not fields["tie_word_embeddings"]:
        raise Unsupported("zamba with an untied head, which unties its shared transformers too")
    number, width = read.count("num_attention_heads", core=True), read.count("intermediate_size", core=True)
    groups = read.count("num_key_value_heads", default=number)
    head_dim = read.count("attention_head_dim", default=2 * hidden // number)
    wide = 2 * hidden  # the shared block reads the layer's input beside the embedding
    shared = wide * (number + 2 * groups) * head_dim + number * head_dim * hidden
    shared += 3 * hidden * width + wide + hidden
    inner = read.count("mamba_expand") * hidden
    return mamba_only(fields) | {
        "state_size": read.count("mamba_d_state"),
        "conv_kernel": read.count("mamba_d_conv"),
        "mamba_intermediate_size": inner,
        "time_step_rank": time_step_rank(read, "mamba_dt_rank", hidden),
        "mamba_conv_bias": read.flag("mamba_conv_bias"),
        "mamba_proj_bias": read.flag("mamba_proj_bias"),
        "other_parameters": {
            "shared_transformer": shared,
            "hybrid_projections": sum(kind == "hybrid" for kind in kinds) * hidden * hidden,
        },
    }


def _zamba2(read: Reader) -> Fields:
    """Mamba-2 layers; hybrid layers take turns at a few shared transformers and add adapters of their own."""
    fields = trunk(read)
    hidden, layers = fields["hidden_size"], fields["num_hidden_layers"]
    kinds = read.items("layers_block_type", str, layers)
    if kinds is None:
        raise Unsupported("zamba2 without layers_block_type")
    if not fields["tie_word_embeddings"]:
        raise Unsupported("zamba2 with an untied head, which unties its shared transformers too")
    hybrids = sum(kind == "hybrid" for kind in kinds)
    number, width = read.count("num_attention_heads", core=True), read.count("intermediate_size", default=4 * hidden)
    groups, wide = read.count("num_key_value_heads", default=number), 2 * hidden
    head_dim, rank, biased = wide // number, read.count("adapter_rank"), read.flag("add_bias_linear")
    block = wide * (number + 2 * groups) * head_dim + number * head_dim * hidden
    block += 3 * hidden * width + biased * (2 * width + hidden) + wide + hidden
    adapter = rank * hidden + rank * 2 * width
    if read.flag("use_shared_attention_adapter"):
        adapter += 3 * 2 * rank * wide
    inner = read.count("mamba_expand") * hidden
    return mamba_only(fields) | {
        "state_size": read.count("mamba_d_state"),
        "conv_kernel": read.count("mamba_d_conv"),
        "mamba_intermediate_size": inner,
        "mamba_num_heads": read.count("n_mamba_heads"),
        "mamba_groups": read.count("mamba_ngroups"),
        "mamba_conv_bias": True,
        "mamba_proj_bias": biased,
        "other_parameters": {
            "shared_transformers": min(read.count("num_mem_blocks"), hybrids) * block,
            "hybrid_adapters": hybrids * adapter,
            "hybrid_projections": hybrids * hidden * hidden,
        },
    }


FAMILIES: dict[str, Callable[[Reader], Fields]] = {
    "nemotron_h": _nemotron_h,
    "zamba": _zamba,
    "zamba2": _zamba2,
}
