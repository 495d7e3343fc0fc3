"""The faults of a soak as a table, by kind: ``python -m tests.cluster.soak_table FOLDER...``."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

MARKS = ("<!-- soak -->", "<!-- /soak -->")


def rows(folders: list[Path]) -> list[dict]:
    """Every fault of the runs that came to their end; what is wrong there is so of each of its faults."""
    found = []
    for folder in folders:
        ends = {(run["seed"], run["run"]): run["problems"] for run in _lines(folder, "runs")}
        for row in _lines(folder, "faults"):
            if (row["seed"], row["run"]) in ends:  # else the soak was ended before
                found.append(row | {"problems": row["problems"] + ends[row["seed"], row["run"]]})
    return found


def _lines(folder: Path, name: str) -> list[dict]:
    paths = sorted(folder.glob(f"{name}-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def table(faults: list[dict], by: str = "kind") -> str:
    """Markdown. Seconds: median and largest. ``back`` is of those that were not hit again before they were back."""
    what = "fault" if by == "kind" else by
    head = f"| {what} | injected | noticed after s | back after s | steps done again: mean, most | in bad runs |"
    lines = [head, "|---|---:|---:|---:|---:|---:|"]
    names = sorted({row[by] for row in faults}, key=lambda name: (-sum(row[by] == name for row in faults), name))
    for name in [*names, None]:
        those = [row for row in faults if name is None or row[by] == name]
        lost = [row["lost"] for row in those if row["lost"] is not None]
        again = f"{statistics.mean(lost):.1f}, {max(lost)}" if lost else "-"
        cells = (name or "all", len(those), _seconds(those, "detected"), _seconds(those, "back"), again)
        lines.append(f"| {' | '.join(map(str, cells))} | {sum(bool(row['problems']) for row in those)} |")
    return "\n".join(lines)


def _seconds(those: list[dict], what: str) -> str:
    known = [row[what] for row in those if row[what] is not None]
    return f"{statistics.median(known):.1f}, {max(known):.1f}" if known else "-"


def main(words: list[str]) -> int:
    """Both tables; how many problems there were."""
    found = rows([Path(word) for word in words])
    print(table(found), table(found, "section"), table(found, "recipe"), sep="\n\n")
    bad = [row for row in found if row["problems"]]
    for row in bad:
        print(json.dumps(row), file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
