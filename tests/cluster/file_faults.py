"""Faults of a run's files, and a request that is one. Each tells what exactly it did."""

from __future__ import annotations

import contextlib
import json
import os
import random

from tests.cluster.moments import STEPS
from tests.cluster.process_faults import NotNow, kill_rank
from tests.cluster.runs import Run
from tests.cluster.slurm import Cluster
from toolkit.runtime.manifest import MANIFEST


def stop_file(cluster: Cluster, run: Run, dice: random.Random) -> str:
    run.output.mkdir(parents=True, exist_ok=True)
    (run.output / "STOP").touch()
    return ""


def valid(run: Run) -> list[int]:
    """Steps of the committed checkpoints; what this test has damaged has been noted in the run."""
    steps = []
    for path in run.output.glob(f"checkpoint-*/{MANIFEST}"):
        step = int(path.parent.name.split("-")[1])
        if run.damaged.get(step) != path.stat().st_mtime_ns:  # else: saved again since
            steps.append(step)
    return sorted(steps)


def damage(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """A kill, and before the next attempt reads it, the newest checkpoint of two is torn."""
    steps = valid(run)
    if len(steps) < 2 or run.newest() >= STEPS:  # a run that has ended reads it no more
        raise NotNow
    said = kill_rank(cluster, run, dice) if run.job()["JobState"] == "RUNNING" else "while it waits"
    folder = run.output / f"checkpoint-{steps[-1]}"
    try:
        manifest = folder / MANIFEST
        names = sorted(json.loads(manifest.read_text())["files"])
        run.damaged[steps[-1]] = manifest.stat().st_mtime_ns
        path = folder / dice.choice(names)
        content = bytearray(path.read_bytes())
        how = dice.choice(("truncated", "flipped", "emptied", "deleted"))
        if how == "flipped":
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        path.write_bytes({"truncated": content[: len(content) // 2], "flipped": content}.get(how, b""))
        if how == "deleted":
            path.unlink()
    except FileNotFoundError:  # deleted meanwhile, for a newer one
        return f"{said}, too late"
    return f"{said}, {folder.name}/{path.relative_to(folder)} {how}"


def lose_latest(cluster: Cluster, run: Run, dice: random.Random) -> str:
    said = kill_rank(cluster, run, dice) if run.job()["JobState"] == "RUNNING" else "while it waits"
    (run.output / "latest").unlink(missing_ok=True)
    return said


def fill_disk(cluster: Cluster, run: Run, dice: random.Random) -> str:
    """All but some of the small disk, less than two checkpoints are."""
    left = dice.randrange(0, 12 * 2**20)
    with (run.output.parent / "filler").open("wb") as file:
        while (free := os.fstatvfs(file.fileno())).f_bavail * free.f_frsize > left + 2**16:
            with contextlib.suppress(OSError):  # the run has been quicker
                os.posix_fallocate(file.fileno(), file.tell(), 2**16)
                file.seek(2**16, os.SEEK_CUR)
    return f"{left / 2**20:.1f} MiB left"
