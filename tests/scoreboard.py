"""docs/accuracy.md: its table of other tools and its outputs, written by ``python -m tests.scoreboard``.

The figures of other tools were measured by running each on the same open data with its own constants, the best of the
settings tried; nothing of theirs was fitted to these sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests import readme_outputs, residual_table
from toolkit.validate.groups import choice
from toolkit.validate.score import Score

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
START, END = "<!-- scoreboard -->", "<!-- end of scoreboard -->"


class Set(NamedTuple):
    """One set of runs, and the best of the other tools on it (a mean absolute relative error of the step time)."""

    name: str
    chosen: Callable[[Score], bool]
    best: float
    tool: str
    of: str


def _source(words: str) -> Callable[[Score], bool]:
    return lambda score: score.job.row.text("source").startswith(words)


def _vtrain(several_nodes: bool) -> Callable[[Score], bool]:
    return lambda score: (
        _source("vtrain")(score) and (score.job.cluster.nodes > 1) == several_nodes and score.job.strategy.tp <= 8
    )


def _foundry(card: str) -> Callable[[Score], bool]:
    return lambda score: (
        _source("mosaicml-llm-foundry")(score)
        and score.job.workload.precision == "bf16"
        and score.job.cluster.accelerator.name.startswith(card)
    )


SETS = (
    Set("vTrain, several nodes of A100, tp <= 8", _vtrain(True), 0.111, "calculon", "103 runs"),
    Set("vTrain, one node of A100", _vtrain(False), 0.276, "SimuMax 1.2", "1,440 runs"),
    Set("Korthikanti 2022, table 5", _source("Korthikanti"), 0.0365, "calculon", "8 runs"),
    Set("llm-foundry FSDP in bf16, A100", _foundry("a100"), 0.127, "llm-analysis, efficiency 0.6", "61 runs"),
    Set("llm-foundry FSDP in bf16, H100", _foundry("h100"), 0.164, "llm-analysis, efficiency 0.5", "70 runs"),
)
BEST_REGRET, BEST_ORDER = 0.013, 0.79  # calculon and SimuMax; SimuMax


def table() -> str:
    """Markdown rows: the set, our runs of it and mean error, the best other tool."""
    scores = [score for score in residual_table.scored().scores if score.measured_seconds is not None]
    lines = [
        "| measured runs | scored here | mean error | best other tool, mean error |",
        "|---|---|---|---|",
    ]
    for each in SETS:
        errors = [abs(score.time_error or 0.0) for score in scores if each.chosen(score)]
        mean = math.fsum(errors) / len(errors)
        lines.append(f"| {each.name} | {len(errors)} | {mean:.1%} | {100 * each.best:.4g}% ({each.tool}; {each.of}) |")
    found = choice(
        (score, (score.predicted_seconds, score.measured_seconds or 0.0)) for score in scores if _vtrain(True)(score)
    )
    groups = f"{found['pairs']} pairs in {found['groups']} group" + "s" * (found["groups"] != 1)
    lines.append(
        f"| vTrain, several nodes: the strategy picked is slower than the best by | {groups} "
        f"| {found['mean_regret']:.1%} | {BEST_REGRET:.1%} (calculon, SimuMax; 4 groups) |"
    )
    lines.append(
        f"| vTrain, several nodes: pairs in the right order | {groups} | {found['pairs_in_order']:.0%} "
        f"| {BEST_ORDER:.0%} (SimuMax) |"
    )
    return "\n".join(lines)


def rendered(text: str) -> str:
    """The page with its table and outputs as they are now."""
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    return readme_outputs.rendered(f"{before}{START}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
