"""Equations S1 to S4: how to split a budget of FLOP between parameters and tokens.

Symbols: ``N`` parameters, ``D`` tokens, ``C`` FLOP, ``E``, ``A``, ``B``, ``alpha``, ``beta`` the fitted constants of a
law. Left out: the FLOP of attention, data that repeats, mixtures of experts, the cost of serving the model.
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.numeric import Number
from toolkit.scaling_law import ComputeOptimal, ScalingLaw


@equation("S1", "6*N*D")
def training_budget_flop(parameters: Number, tokens: Number) -> Number:
    """FLOP of a training run: forward 2, backward 4 for each parameter and token.

    Source: Kaplan et al. 2020, arXiv 2001.08361, section 2.1; used by arXiv 2203.15556 with all parameters in ``N``.
    """
    return 6.0 * parameters * tokens


@equation("S2", "E + A/N^alpha + B/D^beta")
def loss(parameters: Number, tokens: Number, e: float, a: float, b: float, alpha: float, beta: float) -> Number:
    """Expected loss in nats per token: what no model takes away, and what size and data leave.

    Source: Hoffmann et al. 2022, arXiv 2203.15556, equation 2.
    """
    return e + a / (1.0 * parameters) ** alpha + b / (1.0 * tokens) ** beta


@equation("S3", "(alpha*A/(beta*B))^(1/(alpha + beta))*(C/6)^(beta/(alpha + beta))")
def optimal_parameters(flop: Number, a: float, b: float, alpha: float, beta: float) -> Number:
    """The ``N`` of least S2 where S1 is ``C``.

    Source: Hoffmann et al. 2022, arXiv 2203.15556, equation 4.
    """
    weight = (alpha * a / (beta * b)) ** (1.0 / (alpha + beta))
    return weight * (flop / 6.0) ** (beta / (alpha + beta))


@equation("S4", "C/(6*N)")
def affordable_tokens(flop: Number, parameters: Number) -> Number:
    """The ``D`` that a budget leaves for a model of ``N`` parameters (S1).

    Source: Kaplan et al. 2020, arXiv 2001.08361, section 2.1.
    """
    return flop / (6.0 * parameters)


def compute_optimal(flop: float, law: ScalingLaw) -> ComputeOptimal:
    """The split of a budget that a law calls best."""
    parameters = optimal_parameters(flop, law.A, law.B, law.alpha, law.beta)
    tokens = affordable_tokens(flop, parameters)
    return ComputeOptimal(
        law=law.name,
        title=law.title,
        parameters=parameters,
        tokens=tokens,
        tokens_per_parameter=tokens / parameters,
        loss=loss(parameters, tokens, law.E, law.A, law.B, law.alpha, law.beta),
    )
