"""What a row's own figures rule out: rates above the hardware's, and runs that cannot have fitted as they are read."""

from __future__ import annotations

import itertools

import msgspec

from toolkit.calibration import Calibration
from toolkit.estimate.flop import forward_flop_per_token
from toolkit.estimate.matmul import achievable, peak_flop_per_second
from toolkit.estimate.memory import memory
from toolkit.strategy import RECOMPUTE, Strategy
from toolkit.validate.frameworks import shard_of
from toolkit.validate.job import Job
from toolkit.validate.recomputed import checkpoints_whole_layers

TERA = 1e12
# over the memory of the card before a reading is given up: above what the memory model is wrong by on most runs
MARGIN = 1.15
STAGE = "ZeRO stage"


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
    """The job as its row leaves it open, with the least that makes it fit: a run that was measured has fitted.

    Open are recomputation, DeepSpeed's ZeRO stage (0 by default) and how many nodes share a copy under hybrid sharding
    (one by default). Of recomputation PyTorch's frameworks have one switch, whole layers, and Pax has it on; Megatron's
    and MaxText's recipes have many ways, none of which a blank field tells, so they are left as they are. So is a job
    that does not fit with all of that either.
    """
    if job.row.text("outcome") == "OOM":
        return job
    room = MARGIN * job.cluster.accelerator.memory_bytes
    for changes in _readings(job):
        strategy = msgspec.structs.replace(job.strategy, **changes)
        if memory(job.model, job.cluster, job.workload, strategy, calibration).total_bytes <= room:
            return _read_as(job, strategy) if changes else job
    return job


def _readings(job: Job) -> list[dict[str, int]]:
    """What may stand for fields that are blank, from the least to the most that is saved."""
    row, s = job.row, job.strategy
    checkpoints = checkpoints_whole_layers(row.text("framework"), s.framework)
    again = not row.text("recompute_norm") and s.recompute == 0 and checkpoints
    stages = [0, 3] if s.framework == "deepspeed" and f"{STAGE} 0" in job.assumed else [s.zero_stage]
    node = job.cluster.gpus_per_node
    hybrid = row.text("zero_norm") == "hsdp" and s.dp_shard == node and not shard_of(row.text("zero_stage"), node)
    shards = [s.dp_shard]
    while hybrid and shards[-1] < s.dp and s.dp % (2 * shards[-1]) == 0:
        shards.append(2 * shards[-1])
    found: list[dict[str, int]] = []
    for stage, shard in itertools.product(stages, shards):
        staged = {} if stage == s.zero_stage else {"zero_stage": stage}
        staged |= {} if shard == s.dp_shard else {"dp_shard": shard}
        found.append(staged)
        if again:
            found.append(staged | {"recompute": RECOMPUTE.index("full")})
    return found


def _read_as(job: Job, strategy: Strategy) -> Job:
    said = {"no recomputation": "recomputation of every layer"} if strategy.recompute != job.strategy.recompute else {}
    said[f"{STAGE} {job.strategy.zero_stage}"] = f"{STAGE} {strategy.zero_stage}"
    assumed = tuple(said.get(each, each) for each in job.assumed)
    return Job(job.row, job.model, job.cluster, job.workload, strategy, assumed, job.unscored)
