"""Equations M22 and M23: engines around Megatron's parallelism.

DeepSpeed's pipeline (Megatron-DeepSpeed, GPT-NeoX): in fp16 ZeRO-1 keeps 16-bit gradients from one micro batch to the
next, and a float32 copy of its shard for the step; in bf16 BF16_Optimizer keeps float32 gradients beside the 16-bit
ones. Both flatten what they hold into single tensors. Nanotron adds the 16-bit gradients of PyTorch's DDP to float32
ones when a backward pass has ended. InternEvo's HybridZeroOptimizer flattens the gradients of its shard in 16 bits and
in float32, and PyTorch's AdamW makes two more tensors of that size; under FSDP weights and gradients are divided too.
"""

from __future__ import annotations

from toolkit.calibration import Calibration
from toolkit.equation import equation
from toolkit.errors import ToolkitError
from toolkit.estimate.framework_memory import communicators
from toolkit.estimate.memory_megatron import mixed_precision_bytes, sharing_ranks
from toolkit.estimate.precision import optimizer_state_bytes, value_bytes
from toolkit.estimate.states import Share, States
from toolkit.model import ModelSpec
from toolkit.numeric import Number, where
from toolkit.strategy import Strategy
from toolkit.workload import Precision, Workload

ENGINES = ("default", "deepspeed", "nanotron", "internevo")
BUCKET = 5e8  # elements: reduce_bucket_size of ZeRO, MEMORY_OPT_ALLREDUCE_SIZE of the pipeline engine


@equation("M23", "(4 + b)*P/n")
def flat_gradients_bytes(parameters: Number, bytes_per_value: float, ranks: Number) -> Number:
    """Gradients of the shard for the step of ZeRO-1: one flat 16-bit tensor, and its float32 copy.

    Source: DeepSpeed 0.6 ``runtime/zero/stage_1_and_2.py``, ``step`` (``flatten``, then ``to(float32)``).
    """
    return (4.0 + bytes_per_value) * parameters / ranks


@equation("M22", "2*n_c + 2")
def engine_communicators(communicators_of_megatron: Number) -> Number:
    """Communicators: DeepSpeed's grid makes its own for each axis of Megatron's, and one for each neighbour stage.

    Source: DeepSpeed ``runtime/pipe/topology.py`` (``PipelineParallelGrid``), ``runtime/pipe/p2p.py``.
    """
    return 2.0 * communicators_of_megatron + 2.0


def under_engine(workload: Workload, strategy: Strategy) -> bool:
    """Whether an engine of its own runs Megatron's layers; raises ToolkitError for one that is not known."""
    if workload.engine not in ENGINES:
        raise ToolkitError(f"unknown engine {workload.engine!r}", remedy=f"use one of {', '.join(ENGINES)}")
    both = strategy.framework == "megatron" or (workload.engine == "internevo" and strategy.framework == "fsdp")
    return workload.engine != "default" and both


def engine_states(
    model: ModelSpec, workload: Workload, strategy: Strategy, share: Share, precision: Precision
) -> States:
    """States under the engine; what the distributed optimizer divides is divided by ZeRO-1 in the same way."""
    value = precision.parameters
    over, experts_over = sharing_ranks(strategy)
    if workload.engine == "nanotron":
        return _nanotron_states(workload, strategy, share, precision, over, experts_over)
    if workload.engine == "internevo":
        return _internevo_states(workload, strategy, share, over, experts_over)
    wide = workload.precision == "bf16"
    gradients = value + 4.0 if wide else value
    states = precision.master + precision.optimizer_states
    flat = flat_gradients_bytes(share.trained, value, over) + flat_gradients_bytes(share.experts, value, experts_over)
    flat = 0.0 if wide else flat
    tokens = 1.0 * strategy.micro_batch_size * workload.sequence_length / strategy.cp
    transit = where(strategy.pp > 1, 2.0, 0.0) * tokens * value_bytes(workload) * model.hidden_size
    return States(
        parameters=mixed_precision_bytes(share.trained, share.experts, value, 1.0, 1.0),
        optimizer=mixed_precision_bytes(share.trained, share.experts, states, over, experts_over),
        gradients=mixed_precision_bytes(share.trained, share.experts, gradients, 1.0, 1.0),
        # one bucket as it is reduced: in fp16 the gradients are copied into it; in bf16 they are flattened, and the
        # tensor that crosses its size goes with it
        buffers=transit + (4.0 * (BUCKET + share.largest / strategy.tp) if wide else 2.0 * value * BUCKET),
        accumulated=0.0,
        final=0.0,
        backward=0.0,
        step=flat,
        block=flat,
    )


def _nanotron_states(
    workload: Workload, strategy: Strategy, share: Share, precision: Precision, over: Number, experts_over: Number
) -> States:
    """Float32 gradients, DDP's buckets, and the gradients themselves until the backward pass of a micro batch ends.

    Source: nanotron ``optim/gradient_accumulator.py`` (``FP32GradientAccumulator``) and ``trainer.py`` (DDP without
    ``gradient_as_bucket_view``).
    """
    value = precision.parameters
    buckets = where(strategy.dp * strategy.cp > 1, value, 0.0)
    states = precision.master + precision.optimizer_states
    return States(
        parameters=mixed_precision_bytes(share.trained, share.experts, value, 1.0, 1.0),
        optimizer=mixed_precision_bytes(share.trained, share.experts, states, over, experts_over),
        gradients=mixed_precision_bytes(share.trained, share.experts, 4.0, 1.0, 1.0),
        buffers=mixed_precision_bytes(share.trained, share.experts, 1.0, 1.0, 1.0) * buckets,
        accumulated=0.0,
        final=mixed_precision_bytes(share.trained, share.experts, value, 1.0, 1.0),
        backward=0.0,
        step=0.0,
    )


def _internevo_states(
    workload: Workload, strategy: Strategy, share: Share, over: Number, experts_over: Number
) -> States:
    """16-bit weights and gradients, whole or divided by FSDP; the step's tensors are each one block of the shard.

    Source: InternEvo ``solver/optimizer/hybrid_zero_optim.py``, ``_step``; ``train/pipeline.py`` (torch.optim.AdamW).
    """
    value = value_bytes(workload)
    whole = where(strategy.zero_stage == 3, over, 1.0)
    experts_whole = where(strategy.zero_stage == 3, experts_over, 1.0)
    states = 4.0 + optimizer_state_bytes(workload.optimizer)
    step = mixed_precision_bytes(share.trained, share.experts, value + 4.0 + 8.0, over, experts_over)
    # FSDP gathers the weights of a layer and the next one, makes the gradients of one, and keeps its root gathered
    gathered = where(strategy.zero_stage == 3, value * (3.0 * share.layer + share.root), 0.0)
    return States(
        parameters=mixed_precision_bytes(share.trained, share.experts, value, whole, experts_whole),
        optimizer=mixed_precision_bytes(share.trained, share.experts, states, over, experts_over),
        gradients=mixed_precision_bytes(share.trained, share.experts, value, whole, experts_whole),
        buffers=0.0,
        accumulated=0.0,
        final=0.0,
        backward=gathered,
        step=step,
        block=step,
    )


def engine_bytes(workload: Workload, strategy: Strategy, calibration: Calibration) -> Number:
    """Device memory of the engine beyond Megatron's own communicators (counted by M13)."""
    if workload.engine != "deepspeed" or not under_engine(workload, strategy):
        return 0.0
    axes = communicators(strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.dp)
    return (engine_communicators(axes) - axes) * calibration["communicator_bytes"]
