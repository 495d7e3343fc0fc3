"""Equation E1: where a job lies among all jobs, and how far two jobs lie apart.

A job is a point. Each coordinate is something that decides which of the model's errors apply (whose kernels run, on
which generation, at which size), scaled so that a step of 1 changes the kind of job: another generation, an expert
mixture instead of a dense model, ten times the parameters. The scales are choices; the widths that follow from
distances are calibrated on measured runs (E5).

Small models are a kind of their own in time: where the products of a layer would take less than a millisecond at the
peak, the step is made of starting kernels, and every factor of ten below that counts two.
"""

from __future__ import annotations

import math

from toolkit.cluster import ClusterSpec
from toolkit.equation import equation
from toolkit.model import ModelSpec
from toolkit.numeric import log2
from toolkit.residuals import Point
from toolkit.strategy import Strategy
from toolkit.workload import Workload

# one step a generation of tensor cores; what is not listed counts as Hopper's contemporary of another maker
GENERATIONS = {"volta": 0.0, "turing": 0.5, "ampere": 1.0, "ada": 1.5, "hopper": 2.0, "blackwell": 3.0}
BUSY_LAYER_SECONDS = 1e-3  # forward and backward of a layer at the peak: below, the host is slower than the device
ANOTHER_ACCOUNT = 3.0  # what another framework counts in memory, over what it counts in time
DIGITS = 3  # of a coordinate


def point(
    parameters: tuple[float, float], model: ModelSpec, cluster: ClusterSpec, work: Workload, s: Strategy
) -> Point:
    """The coordinates of a job, in the order of FEATURES; ``parameters`` are all of them, and those of one token."""
    total_parameters, active = parameters
    tokens = 1.0 * work.sequence_length * s.micro_batch_size / s.cp
    peak = cluster.accelerator.peak_flop_per_second[work.precision]
    busy = 6.0 * active / model.num_hidden_layers / s.tp * tokens / peak
    architecture = cluster.accelerator.architecture
    found = (
        1.0 * (s.framework == "megatron"),
        0.5 * (s.framework == "deepspeed"),
        0.5 * (s.framework == "ddp"),
        1.5 * (architecture not in GENERATIONS),
        GENERATIONS.get(architecture, GENERATIONS["hopper"]),
        1.0 * (work.precision == "fp8"),
        1.0 * (work.precision == "fp32"),
        1.0 * model.is_moe,
        math.log10(total_parameters),
        0.15 * log2(cluster.num_gpus),
        0.25 * log2(s.tp),
        0.25 * log2(s.pp),
        0.25 * log2(s.cp),
        0.1 * log2(s.ep),
        0.15 * log2(work.sequence_length),
        0.1 * s.zero_stage,
        0.2 * s.recompute,
        0.5 * s.offload,
        1.0 * (work.method != "full"),
        0.5 * (work.attention == "eager"),
        2.0 * max(math.log10(BUSY_LAYER_SECONDS / busy), 0.0),
    )
    return tuple(round(coordinate, DIGITS) for coordinate in found)


def of_memory(job: Point) -> Point:
    """The coordinates that matter to memory: frameworks allocate by other rules, so they lie three times as far apart.

    How long a layer keeps the device busy does not matter.
    """
    return (*(ANOTHER_ACCOUNT * coordinate for coordinate in job[:3]), *job[3:-1], 0.0)


@equation("E1", "sqrt(sum((a_i - b_i)**2))")
def distance(a: Point, b: Point) -> float:
    """How unlike two jobs are: Euclid's distance of their coordinates.

    Source: definition; the scales of the coordinates are choices.
    """
    return math.dist(a, b)
