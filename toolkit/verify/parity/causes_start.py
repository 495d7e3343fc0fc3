"""Why two runs do not start from the same weights."""

from __future__ import annotations

import re

import numpy as np

from toolkit.verify.parity.checks import Check
from toolkit.verify.parity.compare import Row
from toolkit.verify.parity.evidence import is_expert, listed
from toolkit.verify.parity.replay import is_short
from toolkit.verify.parity.traces import Arrays, Run

EXPERT = re.compile(r"(?<=experts\.)\d+")


def lost_tie(names: tuple[str, ...], one: Run, other: Run) -> str:
    """Names that only one run has, because what is one tensor in one process is two in several."""
    ties = [{*group} for group in one.ranks[0]["tied"]]
    for group in ties:
        if {*names} & group and group not in [{*each} for each in other.ranks[0]["tied"]]:
            return (
                f"{' and '.join(sorted(group))} are one tensor in one process and no longer tied in several: tie them"
            )
    return ""


def missing(names: tuple[str, ...], one: Run, other: Run) -> str:
    """Only one of the runs trains these."""
    for run, where in ((other, "in several processes"), (one, "in one process")):
        frozen = [name for name in names if name in run.line(0, run.first).get("frozen", {})]
        if frozen:
            return f"{listed(frozen)} is frozen {where} and trained in the other run: it has no gradient there"
    return lost_tie(names, one, other) or f"only one of the runs has {listed([*names])}: they are different models"


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
    twins = _of_local_numbers(names, mine, theirs)
    if twins:
        return (
            f"experts of several ranks start alike ({twins}): they are drawn by their number on the rank, or from a"
            " state that does not depend on the expert-parallel rank"
        )
    return (
        f"the runs start from different weights ({listed(names)}): another seed, or weights drawn shard by shard"
        " from each rank's own random state; draw whole tensors by name and cut them, or load a checkpoint"
    )


def _of_local_numbers(names: list[str], mine: Arrays, theirs: Arrays) -> str:
    """``expert 2 as expert 0`` where other experts have the weights that an earlier one has in both runs."""
    if not all(is_expert(name) for name in names):
        return ""
    for name in names:
        for earlier in mine:
            same_shape = EXPERT.sub("", earlier) == EXPERT.sub("", name) and earlier not in names
            if same_shape and np.array_equal(theirs[name], mine[earlier]):
                return f"{name} as {earlier}"
    return ""
