"""RunRecord and StepRecord: the telemetry that both training programs write (run.json, steps.jsonl)."""

from __future__ import annotations

import msgspec


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a run: what ran, where, with which versions."""

    schema: int = 1
    name: str
    run_id: str = ""  # the same in all starts, and in copies of the run in durable storage
    plan_sha256: str
    started_at: str  # ISO 8601, UTC
    world_size: int
    versions: dict[str, str]
    hostname: str = ""
    slurm_job_id: str = ""
    restart_count: int = 0
    device: str = ""
    process_started_unix: float = 0.0  # seconds since 1970: before anything was imported; 0: not known
    skipped_batches: tuple[int, ...] = ()  # left out up to now, counted from 0
    last_save_stall_seconds: float = 0.0  # for which saves have held it up after its last step
    ended_unix: float = 0.0  # when no more steps were to follow; 0: it runs, or was killed


class StepSeconds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the seconds of a step went, on rank 0; all sum to ``seconds`` + ``save`` + ``evaluation`` of the step.

    data + forward_backward + optimizer + other = seconds of the step
    """

    data: float  # waiting for its batch
    forward_backward: float  # all micro batches, and the reduction of gradients over the ranks
    optimizer: float  # norm of the gradients, clipping, update, gathering of updated weights
    other: float  # logging, agreeing to go on
    save: float = 0.0  # ``save_stall_seconds``: before this step, since the one before
    evaluation: float = 0.0  # held-out losses since the step before


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One optimizer step, all ranks together. ``loss`` and ``gradient_norm`` are null where not finite."""

    step: int
    seconds: float
    tokens: int
    loss: float | None
    learning_rate: float
    gradient_norm: float | None = None
    peak_memory_bytes: int | None = None
    samples_seen: int = 0
    restart: int = 0  # which start made it: 0 is the first; filled in when it is written, as is the next
    ended_unix: float = 0.0  # seconds since 1970 when it was written; 0: not known
    save_stall_seconds: float = 0.0  # for which saves have held up training since the step before; not in ``seconds``
    seconds_by_part: StepSeconds | None = None  # not in files of older versions
    reward_margin: float | None = None  # of pairs: beta times the margin of their log ratios, chosen over rejected
    reward_accuracy: float | None = None  # share of pairs whose margin is more than 0


class EvaluationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A held-out loss after ``step`` steps: the mean over ``tokens`` trained tokens that are never trained on."""

    step: int
    held_out_loss: float | None
    tokens: int
    seconds: float
    restart: int = 0
    ended_unix: float = 0.0
    reward_margin: float | None = None
    reward_accuracy: float | None = None


class EventRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a run: numbers that went wrong, a setback, a rank that falls behind."""

    kind: str  # nan | spike | setback | straggler
    step: int
    text: str
    action: str = ""  # warn | stop | skip
    quantity: str = ""  # loss | gradient_norm; of a straggler the section
    value: float | None = None  # None: not finite
    limit: float | None = None
    where: str = ""  # of a value that is not finite: module or parameter, and rank
    rank: int | None = None
    host: str = ""
    restart: int = 0
    at_unix: float = 0.0
