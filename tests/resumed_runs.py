"""Runs that are killed and started again, beside runs that never were: starting them, killing them, comparing them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests import finetune_runs
from tests.forked import descendants
from toolkit.plan import Plan
from toolkit.runtime import checkpoint
from toolkit.runtime.telemetry import read_steps
from toolkit.verify.parity.start import write
from toolkit.verify.parity.traces import Run

BATCH, WIDTH = 16, 32  # sequences of a step, tokens of a sequence
EPOCH = 56  # training sequences of TEXT: three and a half steps
SAVED, LAST = 3, 7  # in the middle of the first epoch, and at the end of the second
TOTAL = 12  # steps of the schedule
WORDS = ("the", "a", "run", "rank", "step", "shard", "goes", "on", "stops", "loads", "where", "it", "was")
FEW = random.Random(7)
# 59 windows in either program: 56 to train on, 3 held out
TEXT = " ".join(FEW.choice(WORDS) for _ in range(600))[: 59 * WIDTH]


def settings(folder: Path) -> dict[str, Any]:
    """Of a contract that reads TEXT: small, shuffled, and with a learning rate that moves in every step."""
    text = folder / "text.txt"
    text.write_text(TEXT)
    return {
        "dataset": str(text),
        "tokenizer": "byte",
        "total_steps": TOTAL,
        "warmup_steps": 2,
        "learning_rate": 3.0e-3,
        "min_learning_rate": 3.0e-4,
        "weight_decay": 0.1,
    }


def launch(plan: Plan, folder: Path, last: int = LAST, save: int = SAVED) -> subprocess.Popen[bytes]:
    """Start the plan's program, traced into a folder of this start; checkpoints are all kept.

    What it says goes to a file: a pipe that nobody reads while he waits for a checkpoint would hold it up.
    """
    write(plan, folder)
    ranks = plan.cluster.num_gpus
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}") if ranks > 1 else ()
    more = ["--plan", folder / "plan.json", "--max-steps", last, "--save-steps", save, "--keep", 9]
    if plan.contract.lora_dropout == 0.0:  # what is traced has no dropout
        more += ["--trace", folder / f"trace-{len(list(folder.glob('trace-*')))}"]
    command = [sys.executable, *torchrun, "-m", f"recipes.{plan.program}.train", *map(str, more)]
    with (folder / "said.txt").open("w") as said:
        return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=finetune_runs.environment())


def run(plan: Plan, folder: Path, code: int = 0) -> str:
    """Start and wait; what it said."""
    returned = launch(plan, folder).wait(timeout=300)
    said = (folder / "said.txt").read_text()
    assert returned == code, said
    return said


def killed_after_save(plan: Plan, folder: Path, share: float) -> int:
    """A start whose launcher and ranks get SIGKILL some ``share`` of a step after its first save; the step saved.

    Nothing of it has ended by then: it would go on to the end of the schedule.
    """
    process = launch(plan, folder, last=TOTAL)
    deadline = time.monotonic() + 240
    while not checkpoint.is_complete(folder / "run" / f"checkpoint-{SAVED}"):
        assert process.poll() is None and time.monotonic() < deadline, (folder / "said.txt").read_text()
        time.sleep(0.01)
    time.sleep(share * sorted(step.seconds for step in read_steps(folder / "run"))[SAVED // 2])
    for number in [process.pid, *descendants(process.pid)]:
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(timeout=60)
    assert not (folder / "run" / "FINISHED").exists()
    found = checkpoint.newest_valid(folder / "run")
    assert found is not None, f"killed {share} steps after the save"
    return int(checkpoint.facts(found)["step"])


def give(straight: Path, other: Path, step: int) -> None:
    """Start another run's folder with a checkpoint of this one, and its telemetry up to there."""
    shutil.copytree(straight / "run" / f"checkpoint-{step}", other / "run" / f"checkpoint-{step}")
    lines = (straight / "run" / "steps.jsonl").read_text().splitlines(keepends=True)
    (other / "run" / "steps.jsonl").write_text("".join(lines[:step]))


def trace_of(folder: Path, start: int) -> Run:
    """What one start traced."""
    return Run(folder / f"trace-{start}", read_steps(folder / "run"))


def assert_same_telemetry(straight: Path, other: Path) -> None:
    """Losses, learning rates, gradient norms and samples of all steps."""
    kept = ("step", "loss", "learning_rate", "gradient_norm", "tokens", "samples_seen")
    one, two = (
        [{name: getattr(step, name) for name in kept} for step in read_steps(folder / "run")]
        for folder in (straight, other)
    )
    assert one == two


def assert_same_steps(straight: Path, other: Path, start: int, first: int) -> None:
    """Telemetry; and from step ``first`` on samples in their order, gradients and weights of each rank, to the bit."""
    assert_same_telemetry(straight, other)
    whole, resumed = traced(straight, 0), traced(other, start)
    assert len(whole) == len(resumed) > 0
    for rank, (past, now) in enumerate(zip(whole, resumed, strict=True)):
        assert len(now) == LAST - first + 2
        assert past[first - 1]["weights"] == now[0]["weights"]
        for step in range(first, LAST + 1):
            for what in ("samples", "micro", "gradients", "weights"):
                assert past[step][what] == now[step - first + 1][what], f"{what} of rank {rank} in step {step}"


def traced(folder: Path, start: int) -> list[list[dict[str, Any]]]:
    """Of each rank the lines of a start: what it began with, and each step."""
    paths = sorted((folder / f"trace-{start}").glob("rank-*.jsonl"))
    return [[json.loads(line) for line in path.read_text().splitlines()[1:]] for path in paths]


def tensors(folder: Path) -> dict[str, bytes]:
    """Every tensor of a distributed checkpoint, whole and by its global name, as bytes."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    _load_state_dict(state, FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    flat: dict[str, bytes] = {}
    queue: list[tuple[str, Any]] = list(state.items())
    while queue:
        name, value = queue.pop()
        if isinstance(value, dict):
            queue += [(f"{name}.{key}", each) for key, each in value.items()]
        elif isinstance(value, torch.Tensor):
            flat[name] = value.contiguous().view(torch.uint8).numpy().tobytes() if value.dim() else repr(value).encode()
    return flat


def assert_same_checkpoints(one: Path, other: Path) -> int:
    """Every tensor and number that two checkpoints hold, of weights, optimizer, schedule and random states."""
    import torch

    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.suffix in (".pt", ".pth", ".distcp"))
    compared = 0
    for name in files:
        if name.suffix == ".distcp":
            continue
        first, second = (torch.load(folder / name, map_location="cpu", weights_only=False) for folder in (one, other))
        compared += _assert_same(first, second, str(name))
    return compared


def _assert_same(one: Any, other: Any, where: str) -> int:
    import torch

    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other), where
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        return sum(_assert_same(one[key], other[key], f"{where}: {key}") for key in one)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        return sum(_assert_same(a, b, f"{where}[{n}]") for n, (a, b) in enumerate(zip(one, other, strict=True)))
    elif isinstance(one, int | float | str | bytes | None):
        assert one == other, where
    return 1


def spliced(straight: Path, other: Path, start: int, first: int, folder: Path) -> Run:
    """One run: the straight one's steps before ``first``, the other's from there; what the other has lived through.

    The checkpoint that it went on from is the straight run's, so moments and weights have that history. Rank 0 holds
    what all ranks read before.
    """
    before, after = straight / "trace-0", other / f"trace-{start}"
    folder.mkdir()
    past = [
        [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(before.glob("rank-*.jsonl"))
    ]
    for path in sorted(after.glob("rank-*.jsonl")):
        facts, _, *lines = [json.loads(line) for line in path.read_text().splitlines()]
        own = []
        for step in range(first):
            parts = [rank[1 + step] for rank in past] if facts["rank"] == 0 else []
            own.append(
                {
                    "step": step,
                    "samples": [each for part in parts for each in part["samples"]],
                    "micro": [each for part in parts for each in part["micro"]],
                    "gradients": {},
                    "weights": {},
                }
            )
        (folder / path.name).write_text("\n".join(json.dumps(line) for line in [facts, *own, *lines]) + "\n")
    shift = first - lines[0]["step"]  # the pretraining program numbers the steps of a trace from 1
    for path in before.glob("step-*.npz"):
        if int(path.name.split("-")[1].split(".")[0]) < first:
            shutil.copy(path, folder / path.name)
    for path in after.glob("step-*.npz"):
        number = int(path.name.split("-")[1].split(".")[0])
        if number:
            shutil.copy(path, folder / path.name.replace(f"step-{number}.", f"step-{number + shift}."))
    return Run(folder, read_steps(other / "run"))


def samples(run: Run, step: int) -> Counter[str]:
    """What all ranks together read in a step."""
    return Counter(each for part in run.samples(step).values() for each in part)
