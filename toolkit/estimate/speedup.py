"""Equations R1 to R3: what more GPUs are worth, for the same global batch.

Symbols: ``n`` GPUs, ``t`` seconds of a step on them, ``n_0`` and ``t_0`` the same of the fewest GPUs that fit.
The work of a step is the same at every count, so a ratio of step times is a ratio of rates.
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.numeric import Number


@equation("R1", "t_0/t")
def speed_up(baseline_seconds: Number, seconds: Number) -> Number:
    """How many times faster a step is than on the baseline.

    Source: Amdahl 1967, doi 10.1145/1465482.1465560.
    """
    return baseline_seconds / seconds


@equation("R2", "S*n_0/n")
def scaling_efficiency(speed: Number, baseline_gpus: Number, gpus: Number) -> Number:
    """Speed-up over the number of times the GPUs: 1 is perfect; above 1 where the baseline lacked memory.

    Source: Eager, Zahorjan, Lazowska 1989, doi 10.1109/12.21127, section 2.
    """
    return speed * baseline_gpus / (1.0 * gpus)


@equation("R3", "E*S")
def benefit_per_cost(efficiency: Number, speed: Number) -> Number:
    """Efficiency over step time, up to a constant: where it is largest lies the knee.

    Beyond, twice the GPUs give less than 1.41 times the speed.

    Source: Eager, Zahorjan, Lazowska 1989, doi 10.1109/12.21127, section 4: the knee of the execution time and
    efficiency profile, where the benefit per unit of cost is largest.
    """
    return efficiency * speed
