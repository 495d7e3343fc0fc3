"""What a row's own figures rule out: rates above the hardware's, and runs that cannot have fitted as they are read."""

from __future__ import annotations

import msgspec

from toolkit.calibration import Calibration
from toolkit.estimate.flop import forward_flop_per_token
from toolkit.estimate.matmul import achievable, peak_flop_per_second
from toolkit.estimate.memory import memory
from toolkit.strategy import RECOMPUTE
from toolkit.validate import words
from toolkit.validate.job import Job

TERA = 1e12
# over the memory of the card before a reading is given up: above what the memory model is wrong by on most runs
MARGIN = 1.15


def impossible(job: Job, seconds: float) -> str:
    """Why no such GPUs can have run this step in so short a time; empty where they can.

    The least a step executes is its matrix products. They are held to the dense peak; where the precision is a guess,
    they and the unmasked half of attention to the best rate that was ever measured in it.
    """
    card, work, gpus = job.cluster.accelerator, job.workload, job.cluster.num_gpus
    forward = forward_flop_per_token(job.model, work)
    layers = forward.matmuls + forward.experts
    passes = 3.0 if work.method == "full" else 2.0
    again = (layers if job.strategy.recompute == RECOMPUTE.index("full") else 0.0) * (not job.strategy.recompute_layers)
    tokens = 1.0 * work.global_batch_size * work.sequence_length
    reached = tokens * (passes * (layers + forward.head) + again) / seconds / gpus
    attended = tokens * (passes + (again > 0)) * 0.5 * forward.attention / seconds / gpus
    if work.precision in job.assumed and reached + attended > achievable(card, work.precision):
        return f"missing: precision (faster than any {work.precision} matrix product of {card.name})"
    most = peak_flop_per_second(card, work.precision)
    if reached <= most:
        return ""
    return (
        f"contradiction: {reached / TERA:.0f} TFLOP/s in matrix products alone, where the peak of {card.name} in "
        f"{work.precision} is {most / TERA:.0f}"
    )


def as_it_fitted(job: Job, calibration: Calibration) -> Job:
    """The job with every layer recomputed, where its row says nothing about recomputation and it cannot fit without.

    A run that was measured has fitted. PyTorch's frameworks have one switch for it; Megatron's and MaxText's recipes
    have many ways, none of which a blank field tells, so they are left as they are.
    """
    silent = not job.row.text("recompute_norm") and job.strategy.recompute == 0 and job.row.text("outcome") != "OOM"
    if not silent or not words.checkpoints_whole_layers(job.row.text("framework"), job.strategy.framework):
        return job
    room = MARGIN * job.cluster.accelerator.memory_bytes
    whole = msgspec.structs.replace(job.strategy, recompute=RECOMPUTE.index("full"))
    without, with_ = (
        memory(job.model, job.cluster, job.workload, strategy, calibration).total_bytes
        for strategy in (job.strategy, whole)
    )
    if without <= room or with_ > room:
        return job
    assumed = tuple("recomputation of every layer" if said == "no recomputation" else said for said in job.assumed)
    return Job(job.row, job.model, job.cluster, job.workload, whole, assumed, job.unscored)
