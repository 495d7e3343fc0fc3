"""A run that is hit by fault after fault: when the next comes, whether it is noticed, from where the run goes on."""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from tests.cluster import file_faults, moments, operator_work, runs, slurm
from tests.cluster.moments import EVAL_STEPS, SAVE_STEPS, STEPS, TooLate
from tests.cluster.process_faults import NotNow
from tests.cluster.random_faults import KINDS, Kind

NOTICED_IN = 500  # seconds: nodes wait 120 s for one whose check does not come, scripts 300 s for an srun that is stuck
HANGS = ("--hang-after", "8", "--hang-at-most", "20", "--start-limit", "120")
ARGUMENTS = ("--save-steps", str(SAVE_STEPS), "--eval-steps", str(EVAL_STEPS), *HANGS)


@dataclass
class Row:
    """One fault. Seconds from its injection; ``back`` is None where another one came first, or nothing stopped."""

    seed: int
    run: int
    number: int
    kind: str
    what: str
    recipe: str
    launcher: str
    moment: str  # drawn
    section: str  # seen
    step: int  # the last one that was written
    committed: int  # the newest checkpoint that counts
    at: float
    detected: float | None = None
    back: float | None = None
    lost: int | None = None
    problems: list[str] = field(default_factory=list)


class Chain(runs.Run):
    """A run, and what was done to it."""

    def __init__(self, cluster: slurm.Cluster, folder: Path, small: bool) -> None:
        self.damaged: dict[int, int] = {}  # checkpoints by step: when the manifest was written
        self.small = small
        words, inside = ARGUMENTS, cluster.folder / "small" / folder.name
        if small:
            words = (*words, "--output-dir", str(inside))
        super().__init__(cluster, folder, *words)
        if small:  # a file system that only processes of the cluster see by its name
            self.output = Path(f"/proc/{(cluster.folder / 'run' / 'init.pid').read_text().strip()}/root{inside}")

    def signs(self) -> tuple:
        """What changes when the script or Slurm notices something."""
        said, job = self.log(), self.job(older=0.1)
        return (self.number, job["Restarts"], *(said.count(word) for word in ("\nend: srun", "\nrequeue", "\nerror: ")))


class Soak:
    """One run under fire."""

    def __init__(self, chain: Chain, name: str, launcher: str, seed: int, number: int, file: TextIO) -> None:
        self.chain, self.cluster, self.name, self.launcher = chain, chain.cluster, name, launcher
        self.seed, self.number, self.file = seed, number, file
        self.rows: list[Row] = []
        self.open: list[tuple[Kind, Row, int]] = []  # until the next step of a new start: the number of lines before
        self.start_up = 8.0
        self.problems: list[str] = []
        self.may_end = False  # the job, since a fault that ends jobs

    def hit(self, faults: int) -> None:
        """At most so many faults, then to the end."""
        tries = 0  # a fault may find that it is not its moment
        while len(self.rows) < faults:
            dice = random.Random(f"{self.seed}.{self.number}.{len(self.rows)}.{tries}")
            tries += 1
            try:
                self._one(dice)
            except TooLate:
                if not self._go_on():
                    break
        while True:
            try:
                moments._until(self.chain, lambda: False)
            except TooLate:
                if not self._go_on():
                    break
        self._settle()

    def _one(self, dice: random.Random) -> None:
        waits = self.chain.job()["JobState"] == "PENDING"
        moment = dice.choice(moments.MOMENTS)
        if moment in (moments.PENDING, moments.PREFLIGHT) and not waits:
            moment = moments.START_UP
        if moment == moments.END and self.chain.newest() < 0.7 * STEPS:  # else most runs would have one fault
            moment = moments.STEP
        if moment == moments.START_UP and self.open and not self.open[-1][0].noticed:
            moment = moments.STEP
        possible = [
            kind
            for kind in KINDS
            if moment in kind.moments
            and kind.launcher in ("", self.launcher)
            and kind.small <= self.chain.small
            and (not kind.cables or self.cluster.mode == "netns")
        ]
        kind = dice.choices(possible, [each.weight for each in possible])[0]
        before = self.chain.job()["JobState"]
        if moment in (moments.STEP, moments.SAVE, moments.EVALUATION, moments.END) or before == "RUNNING":
            self._wait_until_back(moment)
        moments.wait_for(moment, self.chain, dice, self.start_up)
        if (self.chain.output / "FINISHED").exists():
            raise TooLate
        self._settle()
        section, signs, lines = moments.section(self.chain), self.chain.signs(), len(self.chain.lines())
        committed, at = max(file_faults.valid(self.chain), default=0), time.monotonic()
        try:
            what = kind.inject(self.cluster, self.chain, dice)
        except NotNow:
            return
        committed = min(committed, max(file_faults.valid(self.chain), default=0))
        place = (self.seed, self.number, len(self.rows), kind.name, what, self.name, self.launcher)
        row = Row(*place, moment, section, self.chain.newest(), committed, at)
        self.rows.append(row)
        self.open.append((kind, row, lines))
        self.may_end |= kind.ends
        self._notice(kind, row, signs)
        operator_work.mend(self.chain)

    def _notice(self, kind: Kind, row: Row, signs: tuple) -> None:
        """Wait until the fault is noticed; one that need not be is over with the next steps."""
        end = time.monotonic() + (NOTICED_IN if kind.noticed else 3)
        while time.monotonic() < end:
            if (self.chain.output / "FINISHED").exists():
                return
            if self.chain.signs() != signs or self.chain.job(older=0.2)["JobState"] in moments.OVER:
                row.detected = time.monotonic() - row.at
                return
            time.sleep(0.05)
        if kind.noticed:
            row.problems.append(f"nothing was noticed in {NOTICED_IN} s")

    def _wait_until_back(self, moment: str) -> None:
        """If the moment is one of a run that trains: so that the seconds until then are known."""
        if moment in (moments.PENDING, moments.PREFLIGHT, moments.START_UP):
            return
        moments._until(self.chain, lambda: self._settle() or not self.open)

    def _settle(self) -> None:
        """If a new start has made a step: how long it took, from where it went on, what was lost."""
        if not self.open:
            return
        lines, count = self.chain.lines(), self.open[0][2]
        before = lines[count - 1].get("restart", 0) if count else -1
        later = [at for at in range(count, len(lines)) if lines[at].get("restart", 0) > before]
        finished = (self.chain.output / "FINISHED").exists()
        silent = all(not kind.noticed for kind, _, _ in self.open)
        if not later and not finished and not (silent and len(lines) > count + 2):
            return
        first = self.open[0][1]
        if later:
            reached = lines[later[0] - 1]["step"] if later[0] else 0
            began = lines[later[0]]["step"] - 1
            first.lost = max(0, reached - began)
            kind, last, _ = self.open[-1]
            if began < last.committed:
                last.problems.append(f"went on from step {began}, step {last.committed} was committed")
            last.back = lines[later[0]]["ended_unix"] - (time.time() - time.monotonic()) - last.at
            if last.detected is not None:
                self.start_up = min(60.0, max(4.0, 0.8 * (last.back - last.detected)))
            if kind.asks and len(self.open) == 1 and first.lost and "result: stopped" in self._last_end():
                last.problems.append(f"{first.lost} steps were not saved")
        for _, row, _ in self.open:
            row.lost = row.lost or 0
            print(json.dumps(asdict(row)), file=self.file, flush=True)
        self.open = []

    def _last_end(self) -> str:
        said = self.chain.log()
        return said[said.rfind("\nend: srun") :].split("\n")[1] if "\nend: srun" in said else ""

    def _go_on(self) -> bool:
        """After the job is over: submitted again, unless the run is finished."""
        if (self.chain.output / "FINISHED").exists():
            return False
        operator_work.mend(self.chain)
        if not self.may_end:
            words = f"the job is {self.chain.job()['JobState']}: {self.chain.log()[-2500:]}"
            (self.open[-1][1].problems if self.open else self.problems).append(words)
        if len(self.problems) > 3:
            return False
        self.chain.submit()
        self.may_end = False
        return True
