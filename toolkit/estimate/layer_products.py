"""Equations T12, T13, T28, T18, T21 and T22: seconds of the matrix products of one average layer, for one micro batch.

Forward, gradient of activations and gradient of weights are one product each: the same FLOP, other operands. Read are
operands in the type of the product (one byte in fp8), written are 16-bit results; the gradient of weights is added
where it accumulates. Left out: wave quantisation, products of the scan of state-space mixers.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.calibration import Calibration
from toolkit.equation import equation
from toolkit.estimate.matmul import Rates, matmul_seconds, memory_seconds
from toolkit.estimate.precision import operand_bytes, state_precision, value_bytes
from toolkit.estimate.work import LayerWork
from toolkit.numeric import Number, minimum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload


class ProductSeconds(NamedTuple):
    """Seconds of the matrix products of one layer and micro batch, and the weights that a GPU holds of it."""

    forward: Number
    backward: Number
    gradient: Number  # that part of the backward which makes the gradient of weights
    weights: Number


@equation("T12", "2*tokens*(sharded/tp + whole + k*expert*padding/tp)")
def layer_matmul_flop(
    tokens: Number, tp: Number, sharded: float, whole: float, active_experts: float, padding: Number
) -> Number:
    """FLOP of the matrix products of one layer on one GPU, forward; experts with their padding (T18).

    Source: F1 over the matrices of the layer.
    """
    return 2.0 * tokens * (sharded / tp + whole + active_experts * padding / tp)


@equation("T18", "imbalance*(1 + tile/(2*rows))")
def expert_padding(rows: Number, tile: float, imbalance: Number) -> Number:
    """Work of grouped products over that of the mean: the fullest rank, and on average half a tile of empty rows.

    ``rows = tokens k etp ep / (E tp)`` are those of one expert.

    Source: 108 grouped products on B200 (SimuMax), where 154 rows take 1.4 times as long as 128.
    """
    return imbalance * (1.0 + tile / (2.0 * rows))


@equation("T21", "tokens*(sharded/tp + whole + k*(expert_sharded + expert_whole*etp)/tp)")
def layer_width(
    tokens: Number,
    tp: Number,
    etp: Number,
    sharded: float,
    whole: float,
    experts_sharded: float,
    experts_whole: float,
) -> Number:
    """Elements that enter (or leave) the products of one layer on one GPU; widths of experts times ``k``.

    A column-parallel matrix reads the whole width and writes its share, a row-parallel one the other way round.

    Source: arXiv 1909.08053, section 3; expert tensor parallelism of megatron-core 0.16.1 moe/experts.py.
    """
    return tokens * (sharded / tp + whole + (experts_sharded + experts_whole * etp) / tp)


@equation("T13", "read*(inputs + weights) + written*outputs")
def product_bytes(read: float, inputs: Number, weights: Number, written: float, outputs: Number) -> Number:
    """Bytes of operands and results: both operands are read once, the result is written once.

    Source: the shapes of the matrices of the layer.
    """
    return read * (inputs + weights) + written * outputs


@equation("T22", "bytes*tokens*(sharded/tp + whole/shared + k*(expert_sharded + expert_whole*etp)/tp)")
def cast_bytes(
    bytes_each: float, tokens: Number, tp: Number, shared: Number, sharded: float, whole: float, experts: Number
) -> Number:
    """Bytes of casting operands to fp8; under sequence parallelism (``shared`` is tp) whole ones are cast in parts.

    A kernel of its own reads 16 bits and writes two copies of one byte, for two products with other axes innermost;
    Transformer Engine fuses most casts into norms and activations. ``experts`` is that part of T21. Left out: casts of
    weights (once a step).

    Source: Transformer Engine 2.x, common/transpose/cast_transpose.cu, common/cast, pytorch/module/layernorm_mlp.py.
    """
    return bytes_each * (tokens * (sharded / tp + whole / shared) + experts)


@equation("T28", "T - f*min(T, F/rate)")
def accumulation_seconds(moved: Number, product: Number, fraction: float) -> Number:
    """Seconds of adding to the gradient of weights inside of the product that makes it.

    ``T`` would read and write the sum by itself. In a fused product one tile is added while others are multiplied, so
    a fraction hides behind the FLOP; unfused, ``f`` is 0.

    Source: ``wgrad_gemm_accum_fp32`` of megatron-core 0.16.1 tensor_parallel/layers.py; the fraction is a calibration.
    """
    return moved - fraction * minimum(moved, product)


def product_seconds(
    work: LayerWork, rate: Rates, workload: Workload, s: Strategy, c: Calibration, tokens: Number
) -> ProductSeconds:
    """Seconds of the products of a layer for one micro batch."""
    padding: Number = 1.0
    if work.expert_weights:
        rows = tokens * work.experts_per_token * s.etp * s.ep / (work.experts * s.tp)
        padding = expert_padding(rows, c["expert_tile_rows"], where(s.ep > 1, c["expert_imbalance"], 1.0))
    k = work.experts_per_token
    flop = layer_matmul_flop(tokens, s.tp, work.sharded_weights, work.whole_weights, k * work.expert_weights, padding)
    weights = (
        work.sharded_weights / s.tp + work.whole_weights + work.experts * work.expert_weights / (1.0 * s.ep * s.etp)
    )
    inputs = layer_width(
        tokens,
        s.tp,
        s.etp,
        work.sharded_inputs,
        work.whole_inputs,
        k * work.expert_sharded_inputs,
        k * work.expert_whole_inputs,
    )
    outputs = layer_width(
        tokens,
        s.tp,
        s.etp,
        work.sharded_outputs,
        work.whole_outputs,
        k * work.expert_sharded_outputs,
        k * work.expert_whole_outputs,
    )
    read, written = operand_bytes(workload), value_bytes(workload)

    def product(moved: Number) -> Number:
        return matmul_seconds(flop, rate.matmul, moved, rate.memory, work.kernels, rate.launch)

    forward = product(product_bytes(read, inputs, weights, written, outputs))
    backward = product(product_bytes(read, outputs, weights, written, inputs))
    if workload.precision == "fp8":
        shared = where(s.sequence_parallel, s.tp, 1)

        def cast(sharded: float, whole: float, elements: Number) -> Number:
            experts = elements - tokens * (sharded / s.tp + whole)
            moved = cast_bytes(c["fp8_cast_bytes"], tokens, s.tp, shared, sharded, whole, experts)
            return memory_seconds(moved, rate.memory, c["memory_fraction"])

        forward = forward + cast(work.sharded_inputs, work.whole_inputs, inputs)
        backward = backward + cast(work.sharded_outputs, work.whole_outputs, outputs)
    if workload.method != "full":  # only the gradient of activations passes through the frozen base
        return ProductSeconds(forward, backward, 0.0, weights)
    # the gradient of weights is accumulated (read, added, written) in its own type
    state = state_precision(workload, s.framework)
    summed = 2.0 if workload.engine == "deepspeed" and workload.precision == "fp16" else state.gradients
    added = memory_seconds(2.0 * summed * weights, rate.memory, 1.0)
    if s.framework == "megatron" and workload.fused_accumulation:
        added = accumulation_seconds(added, flop / rate.matmul, c["accumulation_hidden_fraction"])
    elif s.framework == "megatron":  # written in 16 bits, then read and added by a kernel of its own
        moved = (written + 2.0 * summed) * weights
        added = memory_seconds(written * weights, rate.memory, 1.0) + memory_seconds(
            moved, rate.memory, c["memory_fraction"]
        )
    gradient = product(product_bytes(read, inputs + outputs, 0.0, 0.0, 0.0)) + added
    backward = backward + gradient
    if s.framework == "ddp" and state.parameters > written:
        # autocast reads float32 weights and writes the working copy in every forward pass
        backward = backward + memory_seconds(weights * (state.parameters + written), rate.memory, 1.0)
    return ProductSeconds(forward, backward, gradient, weights)
