"""What every family of transformers has in common: layers, widths, heads, vocabulary, positions, experts."""

from __future__ import annotations

from typing import Any

from toolkit.decode.reader import MOST_LAYERS, Reader

Fields = dict[str, Any]

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")


def trunk(read: Reader, layers: tuple[str, ...] = _LAYERS, tie: bool | None = None) -> Fields:
    """Layers, width, vocabulary, tying and what only matters when the model is built."""
    return {
        "num_hidden_layers": read.count(*layers, core=True, most=MOST_LAYERS),
        "hidden_size": read.count(*_HIDDEN, core=True),
        "vocab_size": read.count("vocab_size", core=True),
        "tie_word_embeddings": read.flag("tie_word_embeddings", default=tie, tell=True),
        "max_position_embeddings": read.count(
            "max_position_embeddings", "n_positions", "max_seq_len", default=0, least=0
        ),
        **builder(read),
    }


def heads(
    read: Reader, hidden_size: int, head_dim: bool = True, kv: tuple[str, ...] = ("num_key_value_heads",)
) -> Fields:
    """Query heads, key and value heads (absent: as many), head size (absent: the width divided by heads)."""
    number = read.count(*_HEADS, core=True)
    wide = read.optional("head_dim") if head_dim else None
    if wide is None:
        if hidden_size % number:
            read.problems.add(
                f"{read.name('hidden_size')} {hidden_size} is not a multiple of num_attention_heads {number}",
                "give head_dim, or correct one of the two",
            )
        wide = max(hidden_size // number, 1)
    groups = read.optional(*kv) or number
    if number % groups:
        default = "" if read.raw(*kv) is not None else f" (the default of {read.family}: it is not in the config)"
        read.problems.add(
            f"{read.name(kv[0])} {groups}{default} does not divide {read.name('num_attention_heads')} {number}",
            "every key and value head serves the same number of query heads",
        )
    return {"num_attention_heads": number, "num_key_value_heads": groups, "head_dim": wide}


def builder(read: Reader) -> Fields:
    """Values that change no count: activation, rotary base and scaling, epsilon, initialisation."""
    rope = read.raw("rope_parameters") or read.raw("rope_scaling")
    rope = Reader(rope if isinstance(rope, dict) else {}, "", read.problems)
    activation = read.raw("hidden_act", "hidden_activation", "activation_function", "activation")
    scaling = rope.number("factor") if rope.values.get("rope_type", rope.values.get("type")) == "llama3" else 0.0
    return {
        "hidden_act": activation if isinstance(activation, str) else "",
        "rope_theta": read.number("rope_theta") or rope.number("rope_theta"),
        "rope_scaling_factor": scaling,
        "partial_rotary_factor": read.number("partial_rotary_factor", "rotary_pct")
        or rope.number("partial_rotary_factor")
        or 1.0,
        "norm_epsilon": read.number("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
        "initializer_range": read.number("initializer_range"),
        "router_aux_loss_coef": read.number("router_aux_loss_coef", "aux_loss_alpha"),
    }


def bias(read: Reader, which: str | bool) -> bool:
    """A bias that is fixed for the family (true, false) or read from a key."""
    return read.flag(which) if isinstance(which, str) else which


def window(read: Reader, layers: int, period: int = 0, key: str = "sliding_window") -> Fields:
    """Sliding-window attention: its width and how many layers use it.

    ``layer_types`` decides where present; else every layer but each ``period``-th one, or all for period 0.
    """
    if read.raw("use_sliding_window") is False or read.raw(key) in (None, False):
        return {}
    width = read.count(key, least=0)
    kinds = read.items("layer_types", str, layers)
    if kinds is not None:
        number = sum(kind == "sliding_attention" for kind in kinds)
    else:
        number = layers - layers // period if period else layers
    return {"sliding_window": width, "sliding_window_layers": number} if width and number else {}


def routed(read: Reader, experts: tuple[str, ...], chosen: tuple[str, ...], width: tuple[str, ...]) -> Fields:
    """Experts, how many a token uses, and their width."""
    number = read.count(*experts, core=True)
    active = read.count(*chosen)
    if active > number:
        read.problems.add(
            f"{read.name(chosen[0])} {active} is more than the {number} experts of {read.name(experts[0])}",
            "a token cannot use more experts than there are",
        )
        active = number
    return {
        "num_experts": number,
        "num_experts_per_tok": active,
        "moe_intermediate_size": read.count(*width, core=True),
    }


def experts_where(layers: int, first_dense: int = 0, step: int = 1, dense_only: list[int] | None = None) -> str:
    """One letter per layer: experts from ``first_dense`` on in every ``step``-th layer that is not dense-only."""
    skip = set(dense_only or ())
    return "".join(
        "E" if layer >= first_dense and layer not in skip and (layer + 1) % max(step, 1) == 0 else "D"
        for layer in range(layers)
    )


def mlp_kinds(read: Reader, layers: int, first_dense: int) -> str:
    """From ``mlp_layer_types`` (dense or sparse) where present, else dense up to ``first_dense``."""
    kinds = read.items("mlp_layer_types", str, layers)
    if kinds is None:
        return experts_where(layers, first_dense)
    return "".join("D" if kind == "dense" else "E" for kind in kinds)


_ATTENTION = ("attention", "full_attention", "sliding_attention")


def mixer_letters(read: Reader, layers: int, other: str, key: str = "layer_types") -> str | None:
    """Mixer letters from a list of layer kinds: A for attention, ``other`` for the rest; None if there is no list."""
    kinds = read.items(key, str, layers)
    return None if kinds is None else "".join("A" if kind in _ATTENTION else other for kind in kinds)


def untied(read: Reader, fields: Fields) -> Fields:
    """Families whose modelling file never ties the head, whatever the flag says."""
    if fields["tie_word_embeddings"]:
        read.notes.append(f"tie_word_embeddings is ignored: {read.family} does not tie its head")
    return fields | {"tie_word_embeddings": False}


def attention(read: Reader) -> Fields:
    """Trunk, heads and one switch for all biases of attention."""
    fields = trunk(read)
    fields |= heads(read, fields["hidden_size"])
    biases = read.flag("attention_bias")
    return fields | {"attention_bias": biases, "attention_output_bias": biases}
