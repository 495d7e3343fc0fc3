"""How many parameters a model has, by layer and by part: exact, from the shape alone.

The sum of the parts is the total; each leaf formula is an equation of ``layer_parameters`` (P1..P16 of
docs/maths.md). Left out: buffers, multi-token prediction layers, quantisation scales.
"""

from __future__ import annotations

import functools

import msgspec

from toolkit.equation import tracing
from toolkit.estimate import layer_parameters as leaf
from toolkit.estimate.layer_parts import layer_parts
from toolkit.estimate.matrices import lora_parameters, matrices
from toolkit.model import ModelSpec

__all__ = ["LayerParameters", "ModelParameters", "count_parameters", "lora_parameters"]


class LayerParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one hidden layer, by how parallelism divides them.

    ``sharded`` is divided by tp, ``replicated`` is whole on every tp rank, ``routed_experts`` (all experts)
    is divided by etp * ep; ``routed_experts_active`` is the part of it that one token uses.
    """

    sharded: int
    replicated: int
    routed_experts: int = 0
    routed_experts_active: int = 0

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.sharded + self.replicated + self.routed_experts

    @property
    def active(self) -> int:
        """Parameters of the layer that one token uses."""
        return self.sharded + self.replicated + self.routed_experts_active


class ModelParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a model. ``head`` is 0 when it is tied to the embedding.

    ``other`` is counted whole on every rank (vision tower, projector). ``largest_tensor`` is the largest
    single parameter in the Hugging Face layout (experts of a layer are one fused tensor there),
    ``largest_module`` the most that one module owns itself, weight and bias (the ``largest_layer_params`` of
    DeepSpeed's estimators), ``largest_layer`` the largest hidden layer. ``parts`` splits the total by kind.
    """

    layers: tuple[LayerParameters, ...]
    embedding: int
    positions: int
    head: int
    final_norm: int
    other: dict[str, int]
    largest_tensor: int
    largest_module: int
    largest_layer: int
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All parameters: the sum of the parts."""
        return (
            self.embedding
            + self.positions
            + self.head
            + self.final_norm
            + sum(self.other.values())
            + sum(layer.total for layer in self.layers)
        )

    @property
    def active(self) -> int:
        """Parameters that one token uses (P16)."""
        return leaf.active(
            self.total,
            sum(layer.routed_experts for layer in self.layers),
            sum(layer.routed_experts_active for layer in self.layers),
        )

    @property
    def non_embedding(self) -> int:
        """Total without token table, positions and untied head: the N of scaling laws (arXiv 2001.08361)."""
        return self.total - self.embedding - self.positions - self.head

    def by_part(self) -> dict[str, int]:
        """Parameters by kind of part, zero parts left out; the values sum to the total."""
        return {name: count for name, count in self.parts.items() if count}


def count_parameters(model: ModelSpec) -> ModelParameters:
    """Count a model exactly; cached by value, except while equations are traced."""
    if tracing():
        return _count(model)
    return _count_cached(msgspec.msgpack.encode(model))


@functools.lru_cache(maxsize=256)
def _count_cached(model: bytes) -> ModelParameters:
    return _count(msgspec.msgpack.decode(model, type=ModelSpec))


def _count(model: ModelSpec) -> ModelParameters:
    kinds = list(zip(model.layer_mixers, model.layer_mlps, strict=True))
    parts_of = {kind: layer_parts(model, *kind) for kind in dict.fromkeys(kinds)}
    if model.counted_layers:
        layers = tuple(
            LayerParameters(sharded=s, replicated=r, routed_experts=e, routed_experts_active=a)
            for s, r, e, a in model.counted_layers
        )
        parts = {
            "layers": sum(layer.sharded + layer.replicated for layer in layers),
            "routed_experts": sum(layer.routed_experts for layer in layers),
        }
    else:
        layers = tuple(_layer(model, parts_of[kind]) for kind in kinds)
        parts = {}
        for kind in kinds:
            for name, (sharded, replicated) in parts_of[kind].items():
                parts[name] = parts.get(name, 0) + sharded + replicated
    width = model.embedding_size or model.hidden_size
    embedding = leaf.embedding(model.vocab_size, width)
    positions = model.learned_positions * model.hidden_size
    head = 0 if model.tie_word_embeddings else embedding
    head += model.lm_head_bias * model.vocab_size
    final_norm = leaf.norms(1, model.hidden_size, model.norm_bias) if model.final_norm else 0
    other = dict(model.other_parameters)
    if model.embedding_norm:
        other["embedding_norm"] = leaf.norms(1, model.hidden_size, model.norm_bias)
    if width != model.hidden_size:
        other["embedding_projections"] = 2 * width * model.hidden_size
    ends = {"embedding": embedding, "positions": positions} | parts | {"final_norm": final_norm, "head": head} | other
    tensor, module = _largest(model, embedding)
    return ModelParameters(
        layers=layers,
        embedding=embedding,
        positions=positions,
        head=head,
        final_norm=final_norm,
        other=other,
        largest_tensor=tensor,
        largest_module=module,
        largest_layer=max((layer.total for layer in layers), default=0),
        parts=ends,
    )


def _layer(model: ModelSpec, parts: dict[str, tuple[int, int]]) -> LayerParameters:
    experts = parts.get("routed_experts", (0, 0))[0]
    return LayerParameters(
        sharded=sum(sharded for name, (sharded, _) in parts.items() if name != "routed_experts"),
        replicated=sum(replicated for _, replicated in parts.values()),
        routed_experts=experts,
        routed_experts_active=experts * model.num_experts_per_tok // model.num_experts if experts else 0,
    )


def _largest(model: ModelSpec, embedding: int) -> tuple[int, int]:
    """Largest single tensor, and the most that one module owns itself (weight and bias)."""
    positions = model.learned_positions * model.hidden_size
    found = [(embedding, embedding + model.lm_head_bias * model.vocab_size), (positions, positions)]
    if model.counted_layers:
        found.append((model.counted_largest_tensor, model.counted_largest_tensor))
    else:
        found += [(m.elements * m.fused, m.elements * m.fused + m.bias) for m in matrices(model)]
    return max(tensor for tensor, _ in found), max(module for _, module in found)
