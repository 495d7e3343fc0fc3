"""What the ranks of a run wrote (:mod:`recipes.trace`), as one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import ToolkitError
from toolkit.record import StepRecord
from toolkit.runtime.telemetry import read_steps

Arrays = dict[str, np.ndarray]


class Run:
    """One traced run: the facts and lines of each rank, the program's own telemetry, and the tensors."""

    def __init__(self, trace: Path, logged: list[StepRecord]) -> None:
        self.folder, self.logged = trace, logged
        self.ranks: list[dict[str, Any]] = []
        self._lines: list[list[dict[str, Any]]] = []
        for number in range(len(list(trace.glob("rank-*.jsonl")))):
            facts, *lines = [json.loads(line) for line in (trace / f"rank-{number}.jsonl").read_text().splitlines()]
            self.ranks.append(facts)
            self._lines.append(lines)
        if not self.ranks:
            raise ToolkitError(f"{trace} holds no trace", remedy="start the program with --trace")
        self.arrays = lru_cache(maxsize=2)(self._read)

    @cached_property
    def first(self) -> int:
        """The step that the run went on from: 0, or that of a checkpoint."""
        return int(self._lines[0][0]["step"])

    @cached_property
    def steps(self) -> int:
        """The last step that every rank has ended."""
        return self.first + min(len(lines) for lines in self._lines) - 1

    def record(self, step: int) -> StepRecord:
        """What the program logged of a step."""
        return next(each for each in self.logged if each.step == step)

    def place(self, rank: int) -> dict[str, int]:
        """Ranks on the axes; 0 on those that the program does not have."""
        place: dict[str, int] = self.ranks[rank]["place"]
        return dict.fromkeys(("tp", "pp", "cp", "dp", "ep"), 0) | place

    def line(self, rank: int, step: int) -> dict[str, Any]:
        """What a rank wrote at the end of a step; ``first`` is the start."""
        return self._lines[rank][step - self.first]

    def axes(self, ranks: list[int]) -> set[str]:
        """The axes along which these ranks differ; expert parallelism only where no other does."""
        places = [self.place(rank) for rank in ranks]
        return {axis for axis in places[0] if len({place[axis] for place in places}) > 1 and axis != "ep"} or {"ep"}

    def _read(self, kind: str, step: int) -> Arrays:
        """Whole tensors after a step, ``w`` weights or ``g`` gradients; of several copies the first."""
        found: Arrays = {}
        for path in sorted(self.folder.glob(f"step-{step}.rank-*.npz")):
            with np.load(path) as held:
                for key in held:
                    if key.startswith(f"{kind}:"):
                        found.setdefault(key[2:], held[key])
        return found

    def samples(self, step: int) -> dict[int, list[str]]:
        """Digests of what each data-parallel rank read, by that rank; its peers must have read the same."""
        return {self.place(rank)["dp"]: self.line(rank, step)["samples"] for rank in reversed(range(len(self.ranks)))}

    def micro_batches(self, step: int) -> list[tuple[float, int]]:
        """Sum of token losses and number of tokens of every micro-batch of the step, from the ranks that see losses."""
        found = []
        for rank in range(len(self.ranks)):
            if self.place(rank)["tp"] == 0:
                found += [(total, count) for total, count in self.line(rank, step)["micro"]]
        return found

    def disagreements(self, kind: str, step: int) -> Iterator[tuple[str, list[int]]]:
        """Names of tensors that ranks hold copies of and do not hold alike, with the ranks that hold them."""
        held: dict[str, dict[int, str]] = {}
        for rank in range(len(self.ranks)):
            for name, digest in self.line(rank, step).get(kind, {}).items():
                held.setdefault(name, {})[rank] = digest
        for name, digests in held.items():
            if len(set(digests.values())) > 1:
                yield name, sorted(digests)


def read(folder: Path) -> Run:
    """The run in a folder that :mod:`toolkit.verify.parity.start` made."""
    return Run(folder / "trace", read_steps(folder / "run"))
