"""Stop a save at every write, rename, deletion and fsync, one by one, and look at what is left.

For every scenario, number of ranks, kind of fault, rank and operation: a fresh copy of the starting tree, the run on
real processes, the fault, what a power cut takes, then three questions: is the newest valid checkpoint right and no
older than before, are there as many valid ones as must be, and does the run, started again, reach the right end and
leave nothing behind?

    python -m tests.kill_points [--ranks 2 4] [--kinds kill ...] [--scenarios TEXT] [--gloo] [--each] [--write]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.killing import faults, program, ranks
from tests.killing.faults import Fault, Journal
from toolkit.runtime import checkpoint

PAGE = Path(__file__).parents[1] / "docs" / "checkpoints.md"
TELL_SECONDS = 10.0
HOSTS = {2: ["a", "a"], 4: ["a", "a", "b", "b"]}


@dataclass(frozen=True)
class Scenario:
    """``before`` are the checkpoints at the start, ``torn`` one that was being written, ``saves`` what follows."""

    name: str
    before: tuple[int, ...]
    saves: tuple[int, ...]
    torn: int = 0
    again: bool = False  # begin at step 0 although there are checkpoints: the same steps are saved again


SCENARIOS = (
    Scenario("first save of a run", (), (2,)),
    Scenario("third save, the first goes", (2, 4), (6,)),
    Scenario("after a torn save", (2, 4), (6,), torn=6),
    Scenario("the same step again", (2, 4), (4,), again=True),
)


@dataclass(frozen=True)
class Result:
    """One row: what was injected where, and what came of it."""

    scenario: str
    ranks: int
    kind: str
    rank: int
    number: int
    operation: str
    newest_after: str
    resumed_from: str
    problems: tuple[str, ...]


def prepare(folder: Path, scenario: Scenario, hosts: list[str]) -> None:
    """The tree that a scenario starts from."""
    folder.mkdir()
    if scenario.before:
        require_success(ranks.run(lambda group: program.train(folder, group, scenario.before), hosts))
    if scenario.torn:
        path = folder / f"checkpoint-{scenario.torn}"
        (path / "part_0").mkdir(parents=True)
        (path / "part_0" / "state.bin").write_bytes(b"torn")


def require_success(codes: list[int]) -> None:
    """Of a run that nothing disturbs."""
    if any(codes):
        raise RuntimeError(f"an undisturbed run ended with {codes}")


def operations(tree: Path, scenario: Scenario, hosts: list[str], scratch: Path) -> list[list[tuple[str, str]]]:
    """For each rank, what it does in an undisturbed run: (operation, path within the run)."""
    folder, journal = scratch / "dry", Journal(scratch / "dry-journal")
    shutil.copytree(tree, folder)
    journal.folder.mkdir()
    require_success(attempt(folder, scenario, hosts, Fault(journal=journal)))
    found: list[list[tuple[str, str]]] = [[] for _ in hosts]
    for _, rank, operation, path in journal.read():
        found[rank].append((operation, str(path.relative_to(folder))))
    shutil.rmtree(folder)
    shutil.rmtree(journal.folder)
    return found


def attempt(folder: Path, scenario: Scenario, hosts: list[str], fault: Fault, gloo: bool = False) -> list[int]:
    """One run, with a fault."""

    def work(group: ranks.Group) -> None:
        fault.install(group.rank)
        program.train(folder, group, scenario.saves, resume=not scenario.again)

    return ranks.run(work, hosts, gloo)


def inject(
    tree: Path, scratch: Path, scenario: Scenario, hosts: list[str], fault: Fault, operation: str, gloo: bool = False
) -> Result:
    """One row of the table."""
    folder, journal = scratch / "run", Journal(scratch / "journal")
    shutil.copytree(tree, folder)
    journal.folder.mkdir()
    fault.journal = journal
    codes = attempt(folder, scenario, hosts, fault, gloo)
    problems = [] if any(codes) else ["nobody noticed"]
    if fault.kind.startswith("power"):
        faults.cut_power(journal, hosts, fault.kind, fault.rank, seed=fault.number)
    newest = checkpoint.newest_valid(folder)
    valid = [path for path in checkpoint.complete(folder) if not any(d.fatal for d in checkpoint.verify(path))]
    step = checkpoint.facts(newest)["step"] if newest else 0
    if step < max(scenario.before, default=0):
        problems.append(f"the newest valid one is {newest}")
    if newest is not None and not program.right(newest, len(hosts)):
        problems.append(f"{newest.name} is not what was saved")
    if len(valid) < len(scenario.before):
        problems.append(f"{len(valid)} are valid, there were {len(scenario.before)}")
    pointer = folder / checkpoint.LATEST
    if scenario.before and pointer.read_text().strip() not in {path.name for path in valid}:
        problems.append(f"latest names {pointer.read_text()!r}")
    more = (*scenario.saves, scenario.saves[-1] + 2)
    codes = ranks.run(lambda group: program.train(folder, group, more), hosts)
    if any(codes):
        problems.append(f"started again, it ends with {codes}")
    problems += leftovers(folder, more, len(hosts))
    shutil.rmtree(folder)
    shutil.rmtree(journal.folder)
    return Result(
        scenario.name,
        len(hosts),
        fault.kind,
        fault.rank,
        fault.number,
        operation,
        newest.name if newest else "none",
        f"step {step}",
        tuple(problems),
    )


def leftovers(folder: Path, saves: tuple[int, ...], size: int) -> list[str]:
    """What the run that was started again has left wrong."""
    found = sorted(path.name for path in folder.iterdir())
    last = f"checkpoint-{saves[-1]}"
    problems = [] if program.right(folder / last, size) else [f"the end is wrong: {found}"]
    kept = [name for name in found if name != checkpoint.LATEST]
    if len(kept) != program.KEEP or any(not name.startswith("checkpoint-") or name.endswith(".old") for name in kept):
        problems.append(f"left behind: {found}")
    return problems


def table(
    sizes: list[int],
    kinds: list[str],
    scenarios: tuple[Scenario, ...] = SCENARIOS,
    gloo: bool = False,
    every: int = 1,
    there: Counter[tuple[str, str]] | None = None,
) -> Iterator[Result]:
    """All rows, or every so many, one by one; ``there`` counts all, by scenario and kind of fault."""
    there = Counter() if there is None else there
    memory = Path("/dev/shm")  # what a power cut takes is modelled, so the disk beneath need not be one
    scratch = Path(tempfile.mkdtemp(prefix="killing-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        for size in sizes:
            for scenario in scenarios:
                tree = scratch / "tree"
                prepare(tree, scenario, HOSTS[size])
                done = operations(tree, scenario, HOSTS[size], scratch)
                for kind in kinds:
                    for rank, mine in enumerate(done):
                        for number, (operation, path) in enumerate(mine, start=1):
                            if kind == "disk full" and operation not in faults.SPACE:
                                continue
                            if kind == "fsync fails" and not operation.startswith("fsync"):
                                continue
                            there[scenario.name, kind] += 1
                            if there.total() % every:
                                continue
                            fault = Fault(rank, number, kind)
                            yield inject(tree, scratch, scenario, HOSTS[size], fault, f"{operation} {path}", gloo)
                shutil.rmtree(tree)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def summary(rows: list[Result]) -> list[str]:
    """The table by scenario and operation: how often injected, what was newest after, and what was lost."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for row in rows:
        groups[row.scenario, row.kind].append(row)
    lines = ["| scenario | fault | injected | newest valid after it | resumed and ended right | lost |"]
    lines.append("|---|---|---:|---|---:|---:|")
    for (scenario, kind), mine in groups.items():
        newest = Counter(row.newest_after.removesuffix(".old") for row in mine)
        said = ", ".join(f"{name} {count}" for name, count in sorted(newest.items()))
        bad = sum(bool(row.problems) for row in mine)
        lines.append(f"| {scenario} | {kind} | {len(mine)} | {said} | {len(mine) - bad} | {bad} |")
    bad = sum(bool(row.problems) for row in rows)
    lines.append(f"| all | | {len(rows)} | | {len(rows) - bad} | {bad} |")
    return lines


def points(rows: list[Result]) -> list[str]:
    """Every operation of rank 0 and the last rank in one save, with what a kill before it leaves."""
    lines = ["| rank | killed before | newest valid | resumed from | result |", "|---:|---|---|---|---|"]
    for row in rows:
        operation = re.sub(r"\.\d+$", ".PID", row.operation)
        result = "; ".join(row.problems) or "nothing lost"
        lines.append(
            f"| {row.rank} | {row.number} `{operation}` | {row.newest_after} | {row.resumed_from} | {result} |"
        )
    return lines


def write_page(rows: list[Result]) -> None:
    """Put both tables into docs/checkpoints.md, between its markers."""
    third = [row for row in rows if (row.scenario, row.ranks, row.kind) == (SCENARIOS[1].name, 2, "kill")]
    text = PAGE.read_text()
    for name, lines in (("faults", summary(rows)), ("points", points(third))):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        text = before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    PAGE.write_text(text)


def main() -> int:
    """Print the table; exit code 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4], choices=sorted(HOSTS))
    parser.add_argument("--kinds", nargs="*", default=list(faults.KINDS), choices=faults.KINDS)
    parser.add_argument("--scenarios", default="", help="only those whose name holds this")
    parser.add_argument("--gloo", action="store_true", help="ranks talk over torch.distributed")
    parser.add_argument("--each", action="store_true", help="print every row")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/checkpoints.md")
    options = parser.parse_args()
    started, rows = time.perf_counter(), []
    if options.gloo:
        import torch.distributed  # noqa: F401  (once, before the ranks are forked)
    scenarios = tuple(each for each in SCENARIOS if options.scenarios in each.name)
    told = 0.0
    for row in table(options.ranks, options.kinds, scenarios, options.gloo):
        rows.append(row)
        if time.perf_counter() - told > TELL_SECONDS:
            told = time.perf_counter()
            lost = sum(bool(each.problems) for each in rows)
            where = f"{row.ranks} ranks, {row.scenario}, {row.kind}"
            print(f"{told - started:.0f} s: {len(rows)} faults, {lost} lost something; now {where}", file=sys.stderr)
        if options.each or row.problems:
            print(
                f"{row.scenario} | {row.ranks} ranks | {row.kind} at {row.number} of rank {row.rank}: {row.operation}"
                f" | {row.newest_after} | {row.resumed_from} | {'; '.join(row.problems) or 'nothing lost'}"
            )
    print("\n".join(summary(rows)))
    if options.write:
        write_page(rows)
    print(f"{len(rows)} faults in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return int(any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main())
