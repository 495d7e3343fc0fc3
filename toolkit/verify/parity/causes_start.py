"""Why two runs do not start from the same weights."""

from __future__ import annotations

import numpy as np

from toolkit.verify.parity.checks import Check
from toolkit.verify.parity.compare import Row
from toolkit.verify.parity.evidence import listed
from toolkit.verify.parity.replay import is_short
from toolkit.verify.parity.traces import Run


def lost_tie(names: tuple[str, ...], one: Run, other: Run) -> str:
    """Names that only one run has, because what is one tensor in one process is two in several."""
    ties = [{*group} for group in one.ranks[0]["tied"]]
    for group in ties:
        if {*names} & group and group not in [{*each} for each in other.ranks[0]["tied"]]:
            return (
                f"{' and '.join(sorted(group))} are one tensor in one process and no longer tied in several: tie them"
            )
    return ""


def other_start(rows: list[Row], broken: list[Check], one: Run, other: Run) -> str:
    """The weights before the first step."""
    copies = next((check.problem for check in broken if check.name == "copies" and check.step == 0), "")
    names = [row.name for row in rows]
    if copies:
        return f"the ranks start from different weights (a seed that depends on the rank?): {copies}"
    mine, theirs = one.arrays("w", rows[0].step), other.arrays("w", rows[0].step)
    for bits, kind in ((8, "bf16"), (11, "fp16")):
        if all(is_short(theirs[name], bits) and not is_short(mine[name], bits) for name in names):
            return (
                f"the weights are loaded in {kind} ({listed(names)}), those of one process in fp32: load them in fp32"
            )
    wide = [float(np.std(theirs[name]) / np.std(mine[name])) for name in names if mine[name].std() > 0.0]
    if wide and np.ptp(wide) < 0.1 and abs(wide[0] - 1.0) > 0.1:
        return (
            f"the weights are drawn {wide[0]:.3g} times as wide ({listed(names)}): their spread comes from the width"
            " of a shard, not of the whole tensor"
        )
    return (
        f"the runs start from different weights ({listed(names)}): another seed, or weights drawn shard by shard"
        " from each rank's own random state; draw whole tensors by name and cut them, or load a checkpoint"
    )
