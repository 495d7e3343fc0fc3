"""ScalingLaw: a fitted loss as a function of parameters and tokens, with its source."""

from __future__ import annotations

import msgspec


class ScalingLaw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``L(N, D) = E + A / N^alpha + B / D^beta``, in nats per token; the capital letters are the paper's."""

    name: str
    title: str
    summary: str = ""
    E: float
    A: float
    B: float
    alpha: float
    beta: float
    standard_errors: dict[str, float] = {}
    least_parameters: float  # of the runs behind the fit
    most_parameters: float
    source: str


class ComputeOptimal(msgspec.Struct, frozen=True, kw_only=True):
    """The split of a budget of ``6 N D`` FLOP that one law calls best, and the loss it expects."""

    law: str
    title: str
    parameters: float
    tokens: float
    tokens_per_parameter: float
    loss: float
