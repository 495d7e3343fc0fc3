"""The model of a row: a registered one where the name says so, else the shape that its columns state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from toolkit.estimate.parameters import count_parameters
from toolkit.model import ModelSpec
from toolkit.validate.notes import Notes, notes_of
from toolkit.validate.rows import Row

# Megatron-LM's GPT-2 tokens, 50,257, padded to a multiple of 1,024: what published GPT runs have where they state it
USUAL_VOCABULARY = 51_200
# MLATransformerConfig of megatron-core 0.16.1
LATENT: dict[str, Any] = {
    "q_lora_rank": 512,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_PLAIN_MLP = r"gpt(?!-oss)|\bmpt|\bopt|bloom"
_STATE_SPACE = r"hybrid|mamba|nemotron-?(h|3)\b"


class Models(NamedTuple):
    """Look-ups of registered models: by name (None where there is none), all, and by a name spelled some other way."""

    find: Callable[[str], ModelSpec | None]
    every: Callable[[], Iterable[ModelSpec]]
    spelled: Callable[[str], ModelSpec | None] = lambda name: None


class Shape(NamedTuple):
    """A model with what was assumed about it, or why there is none."""

    model: ModelSpec | None
    assumed: tuple[str, ...] = ()
    reason: str = ""


def shape_of(row: Row, models: Models) -> Shape:
    """The model that a row trained.

    1. A registered model of that name (without ``-proxyL<n>``), if no stated width contradicts it; depth, vocabulary
       and tying are the row's.
    2. A mixture of experts whose name is not registered, but whose widths and experts are those of a registered
       one: the columns cannot hold latent attention, shared experts and head sizes, the registered model does.
    3. Without these columns, a registered model whose name differs only in marks between its parts (``spelled``).
    4. The columns: layers, hidden and heads have to be stated.
    """
    missing = [name for name in ("layers", "hidden", "heads") if row.count(name) is None]
    named = models.find(re.sub(r"-proxyL\d+$", "", row.text("model")))
    if named is not None and _agrees(named, row):
        return Shape(_with_columns(named, row))
    if missing and named is None:
        named = models.spelled(row.text("model"))
        if named is not None and _agrees(named, row):
            return Shape(_with_columns(named, row), (f"{row.text('model')[:60]} is {named.name}",))
    if missing:
        return Shape(None, reason=f"missing: {', '.join(missing)}, and {row.text('model')!r} is not a registered model")
    notes = notes_of(row)
    if notes.hybrid or re.search(_STATE_SPACE, row.text("model").casefold()):
        return Shape(None, reason="not modelled: no column says which layers are state-space layers")
    if row.count("n_experts") and not row.count("top_k"):
        return Shape(None, reason="missing: top_k of a mixture of experts")
    if row.count("n_experts"):
        for kin in models.every():
            if _same_experts(kin, row):
                return Shape(_with_columns(kin, row), (f"attention and experts as in {kin.name}",))
    return _from_columns(row, notes)


def _agrees(model: ModelSpec, row: Row) -> bool:
    stated = {
        "hidden": model.hidden_size,
        "heads": model.num_attention_heads,
        "kv_heads": model.num_key_value_heads,
        "n_experts": model.num_experts,
    }
    return all(row.count(name) in (None, value) for name, value in stated.items())


def _same_experts(model: ModelSpec, row: Row) -> bool:
    widths = (model.hidden_size, model.num_attention_heads, model.num_experts, model.moe_intermediate_size)
    return model.is_moe and widths == tuple(row.count(name) for name in ("hidden", "heads", "n_experts", "ffn"))


def _with_columns(model: ModelSpec, row: Row) -> ModelSpec:
    layers = row.count("layers") or model.num_hidden_layers
    changes: dict[str, Any] = {
        "name": row.text("model") or model.name,
        "vocab_size": row.count("vocab") or model.vocab_size,
    }
    if row.text("tied") in ("0", "1"):
        changes["tie_word_embeddings"] = row.text("tied") == "1"
    if layers != model.num_hidden_layers:
        changes |= {
            "num_hidden_layers": layers,
            "mixers": _of_depth(model.mixers, layers),
            "mlps": _of_depth(model.mlps, layers),
            "counted_layers": _of_depth(model.counted_layers, layers),
            "sliding_window_layers": min(model.sliding_window_layers, layers),
        }
    return msgspec.structs.replace(model, **changes)


def _of_depth(pattern: Any, layers: int) -> Any:
    """The first layers of a pattern; a deeper one goes on as it ends."""
    return pattern[:layers] + pattern[-1:] * max(layers - len(pattern), 0)


def _from_columns(row: Row, notes: Notes) -> Shape:
    """Gated or plain MLP and tied embeddings are what brings the count nearest to ``params_b`` where both are open."""
    assumed = []
    if row.count("vocab") is None:
        assumed.append(f"vocabulary {USUAL_VOCABULARY}")
    gated, tied = (True, False), (True, False)
    if notes.gated_mlp is not None:
        gated = (notes.gated_mlp,) * 2
    if row.text("tied") in ("0", "1"):
        tied = (row.text("tied") == "1",) * 2
    target = row.number("params_b")
    if target is None:
        if notes.gated_mlp is None:
            gated = (_looks_gated(row),) * 2
            assumed.append("gated MLP" if gated[0] else "plain MLP")
        if len(set(tied)) > 1:
            tied = (not gated[0],) * 2
            assumed.append("tied embeddings" if tied[0] else "untied embeddings")
    shapes = [_columns(row, notes.positions, gate, tie) for gate in dict.fromkeys(gated) for tie in dict.fromkeys(tied)]
    if notes.latent_attention:
        assumed.append("latent attention of Megatron's default ranks and head sizes")
        shapes = [msgspec.structs.replace(shape, **LATENT) for shape in shapes]
    if len(shapes) > 1:
        shapes.sort(key=lambda shape: abs(count_parameters(shape).total - 1e9 * (target or 0.0)))
    return Shape(shapes[0], tuple(assumed))


def default_width(hidden: int, gated: bool) -> int:
    """Of an MLP that a row does not state: four times the model's, two thirds of that with a gate.

    Source: ``validate_args`` of Megatron-LM (``--swiglu`` without ``--ffn-hidden-size``), a multiple of 64.
    """
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _looks_gated(row: Row) -> bool:
    """Without a parameter count: a GPT, or an MLP four times as wide as the model, has no gate."""
    width, ffn = row.count("hidden"), row.count("ffn")
    plain = ffn is None or ffn == 4 * (width or 0)
    return not plain and re.search(_PLAIN_MLP, row.text("model").casefold()) is None


def _columns(row: Row, positions: str, gated: bool, tied: bool) -> ModelSpec:
    hidden, heads = row.count("hidden") or 1, row.count("heads") or 1
    experts, ffn = row.count("n_experts") or 0, row.count("ffn") or default_width(hidden, gated)
    return ModelSpec(
        name=row.text("model") or row.name,
        num_hidden_layers=row.count("layers") or 1,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=row.count("kv_heads") or heads,
        head_dim=max(hidden // heads, 1),
        vocab_size=row.count("vocab") or USUAL_VOCABULARY,
        tie_word_embeddings=tied,
        gated_mlp=gated,
        # plain MLPs come from GPT: LayerNorm and biases everywhere, learned positions
        norm_bias=not gated,
        attention_bias=not gated,
        attention_output_bias=not gated,
        mlp_bias=not gated,
        expert_bias=not gated and experts > 0,
        learned_positions=0 if positions == "rope" or gated else row.count("seq_len") or 0,
        num_experts=experts,
        num_experts_per_tok=row.count("top_k") or 0 if experts else 0,
        moe_intermediate_size=ffn if experts else 0,
    )
