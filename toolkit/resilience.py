"""Reliability of a cluster, and what it makes of a run: the checkpoint interval and the share of time that counts."""

from __future__ import annotations

import msgspec


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """What a formula needs to know of failures and storage; ``assumed`` has a sentence for each figure not stated."""

    gpu_seconds_per_failure: float  # of one GPU, all parts of its share of the node and fabric together
    restart_seconds: float  # from the failure to the first step, without reading the checkpoint
    storage_bytes_per_second: float  # of all nodes of the job together
    assumed: tuple[str, ...] = ()


class ResilienceEstimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a plan copes with failures when it saves every ``checkpoint_steps`` steps.

    The interval is a suggestion: it is no part of the contract, and a run may save at any other.
    ``goodput`` is the share of the job's time in which steps are made that are kept.
    """

    failure_interval_seconds: float  # mean time between failures of all GPUs of the job
    checkpoint_bytes: float
    checkpoint_seconds: float  # the job waits while it is written
    restart_seconds: float  # of one failure, reading the checkpoint included
    checkpoint_interval_seconds: float  # the best one, before it is made whole steps
    checkpoint_steps: int
    goodput: float
    run_seconds: float | None = None  # of all steps, failures included; None: of no known length, or it never ends
    interruptions: float | None = None
    assumptions: tuple[str, ...] = ()
