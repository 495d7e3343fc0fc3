"""Equations F1..F8: floating point operations of training, exact from the shape of the model.

Symbols: ``T`` tokens, ``W`` elements of a weight matrix, ``H`` query heads, ``d_k`` and ``d_v`` widths of a
query/key head and of a value head, ``a`` tokens that one query attends to. A multiply and an add count two.

Two counts of attention are kept apart and never mixed:

- *model FLOP* (for MFU and HFU) let every query attend to the whole sequence (or its window): the convention of
  PaLM (arXiv 2204.02311, appendix B: ``6N + 12 L H d s`` per token), Narayanan et al. 2021 and Megatron-LM;
- *executed FLOP* (for time) let a fused causal kernel skip the masked half.

Left out: norms, rotary positions, softmax, activation functions and the optimizer (they are bound by memory and
counted in time, not here), the embedding look-up, the state scan of state-space mixers.
"""

from __future__ import annotations

import functools

import msgspec

from toolkit.equation import equation
from toolkit.estimate.matrices import Matrix as Weight
from toolkit.estimate.matrices import lora_parameters
from toolkit.estimate.matrices import matrices as weights
from toolkit.model import ModelSpec
from toolkit.numeric import Number
from toolkit.workload import Workload


class Matrix(msgspec.Struct, frozen=True):
    """One kind of weight matrix: ``inputs`` x ``outputs`` elements, how tensor parallelism cuts it, how often.

    ``cut`` is ``column`` (outputs divided), ``row`` (inputs divided), ``whole``, or ``expert_column`` and
    ``expert_row`` for routed experts. ``layers`` is how many layers of the model hold it.
    """

    part: str
    inputs: float
    outputs: float
    cut: str
    layers: float

    @property
    def elements(self) -> float:
        """Weights in one such matrix (of one expert, where it is an expert's)."""
        return self.inputs * self.outputs


@equation("F1", "2*T*W")
def matmul_flop(tokens: Number, weights: Number) -> Number:
    """A matrix product of ``T`` rows with a weight of ``W`` elements: one multiply and one add each.

    Source: Kaplan et al. 2020, arXiv 2001.08361, section 2.1 (2N per token forward).
    """
    return 2.0 * tokens * weights


@equation("F2", "2*T*a*H*(d_k + d_v)")
def attention_flop(tokens: Number, attended: Number, heads: Number, key_dim: float, value_dim: float) -> Number:
    """Scores (``2 T a H d_k``) and weighted values (``2 T a H d_v``) of one attention layer, forward.

    With ``d_k = d_v = h / H`` and ``a = s`` this is the ``4 B s^2 h`` of Narayanan et al. 2021,
    arXiv 2104.04473, section 5.1. Grouped queries do not change it: each query head has its own scores.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
    """
    return 2.0 * tokens * attended * heads * (key_dim + value_dim)


@equation("F3", "min(s, w)")
def attended_model(sequence_length: Number, window: Number) -> Number:
    """Tokens that a query attends to in model FLOP: the whole sequence ``s`` or the window ``w``.

    Source: arXiv 2204.02311, appendix B.
    """
    return float(min(sequence_length, window) if window else sequence_length)


@equation("F4", "w*(1 - w/(2*s)), w = s without a window")
def attended_executed(sequence_length: Number, window: Number) -> Number:
    """Mean tokens that a query attends to under a causal mask, masked blocks skipped: ``s/2`` without window.

    Source: the mean over the rows of a causal mask.
    """
    width = float(min(sequence_length, window) if window else sequence_length)
    return width * (1.0 - width / (2.0 * sequence_length))


@equation("F5", "3*F_forward")
def training_flop(forward: Number) -> Number:
    """Forward, gradient of activations and gradient of weights each cost one forward.

    Source: Kaplan et al. 2020, arXiv 2001.08361, section 2.1 (6N per token).
    """
    return 3.0 * forward


@equation("F6", "2*F_base + 3*F_adapter + 3*F_attention")
def adapter_training_flop(base: Number, adapter: Number, attention: Number) -> Number:
    """LoRA: the frozen base needs no gradient of its weights (4N per token instead of 6N), adapters need all.

    Source: arXiv 2106.09685 section 4; attention has no weights, so its backward is whole (twice its forward).
    """
    return 2.0 * base + 3.0 * adapter + 3.0 * attention


@equation("F7", "[full]*F_layers + [selective]*F_attention")
def recomputed_flop(recompute: Number, layers: Number, attention: Number) -> Number:
    """Forward FLOP done again: all layers (not the head) when full, the attention core when selective.

    Source: Narayanan et al. 2021 section 3.5 and equation 3; Korthikanti et al. 2022, arXiv 2205.05198, section 5.
    """
    return layers * (recompute == 2) + attention * (recompute == 1)


@equation("F8", "F / (GPUs * peak * seconds)")
def utilization(flop: Number, gpus: Number, peak: float, seconds: Number) -> Number:
    """MFU when ``F`` is model FLOP, HFU when it includes what is computed again (arXiv 2204.02311, appendix B).

    Source: arXiv 2204.02311, appendix B.
    """
    return flop / (1.0 * gpus * peak * seconds)


class ForwardFlop(msgspec.Struct, frozen=True, kw_only=True):
    """Forward model FLOP per token by part, all layers together."""

    matmuls: float  # dense matrices of the layers: attention projections, MLPs, shared experts, routers
    experts: float  # active routed experts
    attention: float  # scores and values, the whole sequence attended
    head: float
    adapters: float = 0.0

    @property
    def layers(self) -> float:
        """Everything that full recomputation does again."""
        return self.matmuls + self.experts + self.attention + self.adapters

    @property
    def total(self) -> float:
        """All parts."""
        return self.layers + self.head


def forward_flop_per_token(model: ModelSpec, workload: Workload) -> ForwardFlop:
    """Model FLOP of one token's forward pass, by part (F1, F2, F3)."""
    table = matrices(model)
    dense = sum(m.elements * m.layers for m in table if m.part != "head" and not m.cut.startswith("expert"))
    routed = sum(m.elements * m.layers for m in table if m.cut.startswith("expert"))
    head = sum(m.elements for m in table if m.part == "head")
    return ForwardFlop(
        matmuls=matmul_flop(1.0, dense),
        experts=matmul_flop(1.0, routed * model.num_experts_per_tok),
        attention=attention_per_token(model, workload.sequence_length, executed=False),
        head=matmul_flop(1.0, head),
        adapters=matmul_flop(1.0, float(adapter_parameters(model, workload))),
    )


def model_flop_per_token(model: ModelSpec, workload: Workload) -> float:
    """Model FLOP of training one token (F5, or F6 for LoRA and QLoRA): the numerator of MFU."""
    forward = forward_flop_per_token(model, workload)
    base = forward.matmuls + forward.experts + forward.head
    if workload.method == "full":
        training = float(training_flop(forward.total))
    else:
        training = float(adapter_training_flop(base, forward.adapters, forward.attention))
    if workload.objective != "dpo":
        return training
    from toolkit.estimate.preference import preference_flop  # which needs modules that need this one

    return preference_flop(training, base + forward.attention)


def attention_per_token(model: ModelSpec, sequence_length: int, executed: bool) -> float:
    """Score and value FLOP per token of all attention layers, forward; ``executed`` skips the masked half."""
    windowed, whole = attention_layers(model)
    attended = attended_executed if executed else attended_model
    key_dim, value_dim = attention_dims(model)
    per_layer = attention_flop(1.0, 1.0, model.num_attention_heads, key_dim, value_dim)
    return float(
        per_layer * (windowed * attended(sequence_length, model.sliding_window) + whole * attended(sequence_length, 0))
    )


def attention_layers(model: ModelSpec) -> tuple[int, int]:
    """Attention layers with a sliding window, and without."""
    count = sum(letter in "AB" for letter in model.layer_mixers)
    if not model.sliding_window:
        return 0, count
    windowed = min(model.sliding_window_layers or count, count)
    return windowed, count - windowed


def attention_dims(model: ModelSpec) -> tuple[int, int]:
    """Widths of one query/key head and of one value head."""
    if model.is_mla:
        return model.qk_nope_head_dim + model.qk_rope_head_dim, model.v_head_dim
    return model.head_dim, model.head_dim


def adapter_parameters(model: ModelSpec, workload: Workload) -> int:
    """Trainable parameters of LoRA and QLoRA; 0 when the whole model is trained."""
    if workload.method == "full":
        return 0
    return lora_parameters(model, workload.lora_rank, workload.lora_targets)


_ROWS = ("o_proj", "down_proj", "out_proj", "x_proj")
_WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "router", "shared_expert_gate")


def matrices(model: ModelSpec) -> tuple[Matrix, ...]:
    """Every kind of weight matrix that a token passes through, the head last; cached by value."""
    return _matrices(msgspec.msgpack.encode(model))


@functools.lru_cache(maxsize=256)
def _matrices(encoded: bytes) -> tuple[Matrix, ...]:
    model = msgspec.msgpack.decode(encoded, type=ModelSpec)
    h = float(model.hidden_size)
    found = _from_counts(model) if model.counted_layers else [_cut(model, matrix) for matrix in weights(model)]
    found.append(Matrix("head", float(model.embedding_size or h), float(model.vocab_size), "column", 1.0))
    return tuple(found)


def _cut(model: ModelSpec, matrix: Weight) -> Matrix:
    cut = "row" if matrix.name in _ROWS else "whole" if matrix.name in _WHOLE else "column"
    layers = float(matrix.number)
    if matrix.group == "expert":
        cut, layers = f"expert_{cut}", layers / model.num_experts
    return Matrix(matrix.group, float(matrix.inputs), float(matrix.outputs), cut, layers)


def _from_counts(model: ModelSpec) -> list[Matrix]:
    """Layers that were only counted: one matrix with the mean number of elements of a layer."""
    h, layers = float(model.hidden_size), float(model.num_hidden_layers)
    sharded = sum(row[0] for row in model.counted_layers) / layers
    active = sum(row[3] for row in model.counted_layers) / layers
    found = [Matrix("mlp", h, sharded / h, "column", layers)]
    if active:
        one = active / max(model.num_experts_per_tok, 1)
        found.append(Matrix("expert", h, one / h, "expert_column", layers))
    return found
