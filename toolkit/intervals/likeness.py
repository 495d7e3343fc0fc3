"""Equation E1: where a job lies among all jobs, and how far two jobs lie apart.

A job is a point. Each coordinate is something that decides which of the model's errors apply (whose kernels run, on
which generation, at which size), scaled so that a step of 1 changes the kind of job: another generation, an expert
mixture instead of a dense model, ten times the parameters. The scales are choices; the widths that follow from
distances are calibrated on measured runs (E5).
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
DIGITS = 3  # of a coordinate


def point(total_parameters: float, model: ModelSpec, cluster: ClusterSpec, work: Workload, s: Strategy) -> Point:
    """The coordinates of a job, in the order of FEATURES."""
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
    )
    return tuple(round(coordinate, DIGITS) for coordinate in found)


@equation("E1", "sqrt(sum((a_i - b_i)**2))")
def distance(a: Point, b: Point) -> float:
    """How unlike two jobs are: Euclid's distance of their coordinates.

    Source: definition; the scales of the coordinates are choices.
    """
    return math.dist(a, b)
