"""``make bench``: candidates per second and the CPU time of planning, measured in one run.

CPU time (user + system) of the whole ``toolkit`` process is the honest column on a busy machine;
the least of a few runs is printed. Nothing here is asserted: a benchmark is not a timed test. With
``TOOLKIT_PEERS=DIR`` peers are measured beside it (tests/bench_peers.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import bench_peers
from toolkit.cli.request import build
from toolkit.search.planner import search

RUNS = 5
JOBS = (("7B", "64"), ("70B", "512"), ("1T", "16384"))
SWEEPS = (("7B", "8..512"), ("70B", "64..4096"))


def cpu_seconds(*argv: str) -> tuple[float, float]:
    """Least CPU seconds and the peak resident memory (MiB) over RUNS runs of a command."""
    best, memory = float("inf"), 0.0
    for _ in range(RUNS):
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(argv)} failed with status {status}")
        best = min(best, usage.ru_utime + usage.ru_stime)
        memory = max(memory, usage.ru_maxrss / 1024)
    return best, memory


def main() -> None:
    """Print the table."""
    toolkit = str(Path(sys.executable).with_name("toolkit"))
    bare, _ = cpu_seconds(sys.executable, "-c", "pass")
    help_cpu, _ = cpu_seconds(toolkit, "--help")
    print(f"python -c pass               {bare:6.3f} s CPU")
    print(f"toolkit --help               {help_cpu:6.3f} s CPU")
    print(f"{'plan':28} {'CPU s':>7} {'MiB':>6} {'candidates':>11} {'search s':>9} {'candidates/s':>13}")
    for params, gpus in JOBS:
        argv = ("plan", "--params", params, "--gpus", gpus)
        asked = build({"params": params, "gpus": gpus})
        search(asked.request, asked.calibration)  # warm: imports and caches
        result = min((search(asked.request, asked.calibration) for _ in range(RUNS)), key=lambda r: r.seconds)
        cpu, memory = cpu_seconds(toolkit, *argv)
        print(
            f"{params + ' on ' + gpus + ' GPUs':28} {cpu:7.3f} {memory:6.0f} {result.total:11,} "
            f"{result.seconds:9.3f} {result.total / result.seconds:13,.0f}"
        )
    for params, gpus in SWEEPS:
        cpu, memory = cpu_seconds(toolkit, "plan", "--params", params, "--gpus", gpus)
        print(f"{params + ' on ' + gpus + ' GPUs':28} {cpu:7.3f} {memory:6.0f}")
    for line in bench_peers.report():
        print(line, flush=True)


if __name__ == "__main__":
    main()
