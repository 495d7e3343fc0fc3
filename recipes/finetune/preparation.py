"""How long tokenising takes, told before it has taken it, and making the sequences of a run.

With ``n`` rows, of which one process does ``r`` a second, and ``w`` processes (reading is left out: it is many times
faster, and goes on beside it):

    seconds = n / (r w)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from recipes.finetune import data, tokenise
from recipes.finetune.documents import about_how_many
from toolkit.plan import Plan
from toolkit.units import format_seconds

LONG = 120.0  # seconds that are worth a word
TIME_OUT = 1800.0  # of a process group over gloo, and of the Trainer's; NCCL's own default is 600 s
PREPARE = "python -m recipes.finetune.prepare --plan PLAN.json"


class Estimate(NamedTuple):
    """``rows`` at ``rate`` rows a second of one process, by so many."""

    rows: int
    rate: float
    workers: int = 1

    @property
    def seconds(self) -> float:
        """``rows / (rate * workers)``."""
        return self.rows / (self.rate * self.workers)

    def __str__(self) -> str:
        by = "1 process" if self.workers == 1 else f"{self.workers} processes"
        lasting = f"{self.seconds:,.0f} s"
        words = format_seconds(self.seconds)
        if self.seconds > 600.0:
            lasting += f" ({words})"
        return f"tokenising {self.rows:,} rows at {self.rate:,.2f} rows/s by {by} takes {lasting}"


def warning(estimate: Estimate, ranks: int, command: str = PREPARE) -> str:
    """What to tell of a preparation that other ranks wait for; empty where it is short or nobody waits."""
    if estimate.seconds < LONG or ranks == 1:
        return ""
    said = f"{estimate}, and {ranks - 1:,} other rank(s) wait for it"
    if estimate.seconds > TIME_OUT:
        said += (
            f"; in a collective they would be ended after {TIME_OUT:,.0f} s (NCCL's default: 600 s), so they wait"
            " without one"
        )
    return f"{said}\n  tokenise first, where no GPU waits: {command}"


def make(plan: Plan, tokenizer: Any, padding: int, cache: Path, ranks: int = 1, workers: int = 0) -> None:
    """Tokenise the contract's dataset into this folder, and say early how long it will take."""
    count = workers or tokenise.processes()

    def paced(pace: tokenise.Pace) -> None:
        rows = max(1, about_how_many(plan.contract.dataset) - pace.rows)
        estimate = Estimate(rows, pace.rows / pace.seconds, count)
        said = warning(estimate, ranks) or (str(estimate) if estimate.seconds > LONG else "")
        if said:
            print(f"about: {said}", flush=True)

    data.store(*data.build(plan.contract, tokenizer, padding, count, paced), cache)
