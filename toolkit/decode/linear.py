"""Linear attention, short convolutions and recurrences, beside attention in other layers.

Each function states what the modelling file of transformers 5.24 builds for its family.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.decode.common import (
    Fields,
    attention,
    experts_where,
    heads,
    mixer_letters,
    mlp_kinds,
    routed,
    trunk,
    untied,
)
from toolkit.decode.latent import latent_attention
from toolkit.decode.reader import Reader, Unsupported


def _linear(read: Reader, layers: int) -> Fields:
    """Gated delta rule in all layers but each fourth (or as layer_types says)."""
    mixers = mixer_letters(read, layers, "L")
    if mixers is None:
        every = read.count("full_attention_interval", default=4)
        mixers = "".join("L" if (i + 1) % every else "A" for i in range(layers))
        if read.family == "olmo_hybrid" and "A" not in mixers:
            mixers = mixers[:-1] + "A"
    return {
        "mixers": mixers,
        "conv_kernel": read.count("linear_conv_kernel_dim"),
        "linear_num_key_heads": read.count("linear_num_key_heads"),
        "linear_num_value_heads": read.count("linear_num_value_heads"),
        "linear_key_head_dim": read.count("linear_key_head_dim"),
        "linear_value_head_dim": read.count("linear_value_head_dim"),
    }


def _qwen_linear(read: Reader) -> Fields:
    fields = attention(read)
    return fields | _linear(read, fields["num_hidden_layers"]) | {"attention_output_gate": True, "qk_norm": "head"}


def _qwen3_5(read: Reader) -> Fields:
    return _qwen_linear(read) | {"intermediate_size": read.count("intermediate_size", core=True)}


def _qwen3_next(read: Reader) -> Fields:
    fields = _qwen_linear(read)
    fields |= routed(read, ("num_experts", "num_local_experts"), ("num_experts_per_tok",), ("moe_intermediate_size",))
    step = read.count("decoder_sparse_step", default=1)
    fields["mlps"] = experts_where(fields["num_hidden_layers"], 0, step, read.items("mlp_only_layers", int))
    dense = {} if "D" in fields["mlps"] else {"default": fields["moe_intermediate_size"]}
    return fields | {
        "intermediate_size": read.count("intermediate_size", **dense),
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": read.count("shared_expert_intermediate_size"),
        "shared_expert_gate": True,
    }


def _olmo_hybrid(read: Reader) -> Fields:
    fields = attention(read) | {"qk_norm": "full", "intermediate_size": read.count("intermediate_size", core=True)}
    return fields | _linear(read, fields["num_hidden_layers"])


def _kimi_linear(read: Reader) -> Fields:
    """Kimi delta attention (decay per channel) beside latent attention."""
    fields = untied(read, trunk(read))
    layers, hidden = fields["num_hidden_layers"], fields["hidden_size"]
    mixers = mixer_letters(read, layers, "L")
    if mixers is None:
        raise Unsupported("kimi_linear without layer_types")
    number, size = read.count("linear_num_heads"), read.count("linear_head_dim")
    kernel, wide = read.count("linear_conv_kernel_dim"), number * size
    delta = 3 * hidden * wide + 3 * wide * kernel + wide * hidden + hidden * number + size
    delta += 2 * (hidden * size + size * wide) + wide + number  # gates for decay and output, time step, A
    fields |= latent_attention(read)
    fields |= routed(
        read, ("num_experts",), ("num_experts_per_tok", "num_experts_per_token"), ("moe_intermediate_size",)
    )
    fields["mlps"] = mlp_kinds(read, layers, read.count("first_k_dense_replace", default=1, least=0))
    shared = read.count("num_shared_experts", "n_shared_experts", least=0)
    return fields | {
        "mixers": mixers,
        "conv_kernel": kernel,
        "linear_attention_parameters": delta,
        "intermediate_size": read.count("intermediate_size", core=True),
        "num_shared_experts": shared,
        "shared_expert_intermediate_size": shared * fields["moe_intermediate_size"],
    }


def _minimax(read: Reader) -> Fields:
    """Lightning attention in every other layer: query, key and value in one, a gate, a norm, the output."""
    fields = trunk(read)
    fields |= heads(read, fields["hidden_size"])
    layers, hidden = fields["num_hidden_layers"], fields["hidden_size"]
    wide = fields["num_attention_heads"] * fields["head_dim"]
    fields |= routed(read, ("num_local_experts", "num_experts"), ("num_experts_per_tok",), ("intermediate_size",))
    mixers = mixer_letters(read, layers, "L") or "".join("A" if (i + 1) % 2 else "L" for i in range(layers))
    kinds = read.items("attn_type_list", int, layers)  # in MiniMax's own repository
    if kinds is not None:
        mixers = "".join("A" if kind else "L" for kind in kinds)
    return fields | {
        "mixers": mixers,
        "intermediate_size": fields["moe_intermediate_size"],
        "linear_attention_parameters": 5 * hidden * wide + wide,
    }


def _recurrent_gemma(read: Reader) -> Fields:
    """Gated linear recurrences (arXiv 2402.19427) in two of three layers, local attention in the third."""
    fields = trunk(read)
    hidden, layers = fields["hidden_size"], fields["num_hidden_layers"]
    fields |= heads(read, hidden, head_dim=False)
    number, width = fields["num_attention_heads"], read.count("lru_width", default=hidden)
    kinds = read.items("block_types", str) or read.default("block_types") or ["recurrent"]
    letters = ["L" if kind == "recurrent" else "A" for kind in kinds]
    kernel = read.count("conv1d_width")
    gates = 2 * (number * (width // number) ** 2 + width) + width
    recurrence = 2 * (hidden * width + width) + width * hidden + hidden + width * kernel + width + gates
    return fields | {
        "mixers": "".join(letters[i % len(letters)] for i in range(layers)),
        "linear_attention_parameters": recurrence,
        "conv_kernel": kernel,
        "intermediate_size": max(read.count("intermediate_size", core=True) // 2, 1),
        "attention_bias": read.flag("attention_bias"),
        "attention_output_bias": True,
        "mlp_bias": True,
    }


def _lfm2_width(read: Reader) -> int:
    width = read.count("block_ff_dim", "intermediate_size")
    if read.flag("block_auto_adjust_ff_dim"):
        factor = read.ratio("block_ffn_dim_multiplier", 1.0)
        multiple = read.count("block_multiple_of")
        width = multiple * -(-int(factor * int(2 * width / 3)) // multiple)
    return width


def _lfm2_trunk(read: Reader) -> Fields:
    if isinstance(read.values.get("tie_embedding"), bool):
        read.values = read.values | {"tie_word_embeddings": read.values["tie_embedding"]}
    fields = trunk(read)
    fields |= heads(read, fields["hidden_size"], head_dim=False)
    layers = fields["num_hidden_layers"]
    mixers = mixer_letters(read, layers, "C")
    if mixers is None:
        chosen = read.items("full_attn_idxs", int)
        mixers = "".join("A" if chosen is None or i in chosen else "C" for i in range(layers))
    conv = {"conv_kernel": read.count("conv_L_cache"), "mamba_conv_bias": read.flag("conv_bias")}
    return fields | conv | {"mixers": mixers, "qk_norm": "head"}


def _lfm2(read: Reader) -> Fields:
    return _lfm2_trunk(read) | {"intermediate_size": _lfm2_width(read)}


def _lfm2_moe(read: Reader) -> Fields:
    fields = _lfm2_trunk(read) | {"intermediate_size": read.count("intermediate_size", core=True)}
    fields |= routed(read, ("num_experts",), ("num_experts_per_tok",), ("moe_intermediate_size",))
    first = read.count("num_dense_layers", least=0)
    return fields | {"mlps": experts_where(fields["num_hidden_layers"], first)}


FAMILIES: dict[str, Callable[[Reader], Fields]] = {
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe_text": _qwen3_next,
    "olmo_hybrid": _olmo_hybrid,
    "kimi_linear": _kimi_linear,
    "minimax": _minimax,
    "recurrent_gemma": _recurrent_gemma,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
}
