"""How many parameters a model has, by layer and by part: exact, from the shape alone.

The sum of the parts is the total; each leaf formula is an equation of ``layer_parameters`` (P1..P16 of
docs/maths.md). Left out: buffers, multi-token prediction layers, quantisation scales.
"""

from __future__ import annotations

import functools

import msgspec

from toolkit.equation import tracing
from toolkit.estimate import layer_parameters as leaf
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
    parts_of = {kind: _layer_parts(model, *kind) for kind in dict.fromkeys(kinds)}
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


def _layer_parts(model: ModelSpec, mixer: str, mlp: str) -> dict[str, tuple[int, int]]:
    """Parts of one kind of layer: name -> (divided by tp, whole on every rank)."""
    parts: dict[str, tuple[int, int]] = {}
    if mixer in "AB":
        parts["attention"] = _attention(model)
    if mixer in "MB":
        parts["state_space"] = _state_space(model)
    if mixer == "L":
        parts["linear_attention"] = (
            model.linear_attention_parameters
            or leaf.delta_rule_sharded(
                model.hidden_size,
                model.linear_num_key_heads,
                model.linear_num_value_heads,
                model.linear_key_head_dim,
                model.linear_value_head_dim,
                model.conv_kernel,
            ),
            0,
        )
    if mixer == "C":
        convolution = leaf.short_convolution_sharded(model.hidden_size, model.conv_kernel, model.mamba_conv_bias)
        parts["short_convolution"] = (convolution, 0)
    if mlp == "D":
        parts["mlp"] = (
            leaf.mlp_sharded(model.hidden_size, model.intermediate_size, model.gated_mlp, model.mlp_bias),
            leaf.mlp_replicated(model.hidden_size, model.mlp_bias),
        )
    if mlp == "E":
        parts |= _expert_parts(model)
    parts["norms"] = (0, leaf.norms(model.norms_per_layer, model.hidden_size, model.norm_bias))
    if model.other_layer_parameters:
        parts["other_layer_parameters"] = (0, model.other_layer_parameters)
    return parts


def _attention(model: ModelSpec) -> tuple[int, int]:
    if model.is_mla:
        sharded = leaf.latent_attention_sharded(
            model.hidden_size,
            model.num_attention_heads,
            model.q_lora_rank,
            model.kv_lora_rank,
            model.qk_nope_head_dim,
            model.qk_rope_head_dim,
            model.v_head_dim,
        )
        replicated = leaf.latent_attention_replicated(
            model.hidden_size, model.q_lora_rank, model.kv_lora_rank, model.qk_rope_head_dim, model.attention_bias
        )
        return sharded, replicated
    wide = {"none": 0, "head": 1, "full": model.num_attention_heads}[model.qk_norm]
    wide_key = {"none": 0, "head": 1, "full": model.num_key_value_heads}[model.qk_norm]
    sharded = leaf.attention_sharded(
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
        model.attention_bias,
        model.attention_output_gate,
        model.attention_sinks,
    )
    replicated = leaf.attention_replicated(
        model.hidden_size,
        model.attention_output_bias,
        wide * model.head_dim,
        wide_key * model.head_dim,
        model.qk_norm_bias,
    )
    return sharded, replicated


def _state_space(model: ModelSpec) -> tuple[int, int]:
    if model.mamba_num_heads:
        sharded = leaf.mamba2_sharded(
            model.hidden_size,
            model.mamba_intermediate_size,
            model.state_size,
            model.conv_kernel,
            model.mamba_groups,
            model.mamba_num_heads,
            model.mamba_conv_bias,
            model.mamba_proj_bias,
            model.mamba_gated_norm,
        )
        return sharded, 0
    sharded = leaf.mamba_sharded(
        model.hidden_size,
        model.mamba_intermediate_size,
        model.state_size,
        model.conv_kernel,
        model.time_step_rank,
        model.mamba_conv_bias,
        model.mamba_proj_bias,
    )
    return sharded, leaf.mamba_replicated(model.state_size, model.time_step_rank, model.mamba_inner_norms)


def _expert_parts(model: ModelSpec) -> dict[str, tuple[int, int]]:
    h, gated = model.hidden_size, model.gated_mlp
    shared = leaf.mlp_sharded(h, model.shared_expert_intermediate_size, gated, model.expert_bias)
    return {
        "router": (0, leaf.router(h, model.num_experts, model.router_bias, model.shared_expert_gate)),
        "shared_experts": (shared, 0),
        "routed_experts": (
            leaf.experts(model.num_experts, h, model.moe_intermediate_size, gated, model.expert_bias),
            0,
        ),
    }


def _largest(model: ModelSpec, embedding: int) -> tuple[int, int]:
    """Largest single tensor, and the most that one module owns itself (weight and bias)."""
    positions = model.learned_positions * model.hidden_size
    found = [(embedding, embedding + model.lm_head_bias * model.vocab_size), (positions, positions)]
    if model.counted_layers:
        found.append((model.counted_largest_tensor, model.counted_largest_tensor))
    else:
        found += [(m.elements * m.fused, m.elements * m.fused + m.bias) for m in matrices(model)]
    return max(tensor for tensor, _ in found), max(module for _, module in found)
