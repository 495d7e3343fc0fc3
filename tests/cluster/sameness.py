"""Whether a run that was hit again and again ended as the undisturbed one: in what it did not."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from toolkit.runtime.checkpoint import FINISHED
from toolkit.runtime.manifest import MANIFEST
from toolkit.runtime.telemetry import STEPS, read_evaluations

PART = ("loss", "gradient_norm", "learning_rate", "samples_seen", "tokens")
# written with what is not the state of the training: times of steps, paths of this folder, the name of a save
NOT_STATE = ("trainer_state.json", "training_args.bin", ".metadata", "common.pt")


@dataclass(frozen=True)
class Undisturbed:
    """What the run is without a fault."""

    steps: dict[int, tuple]
    evaluations: dict[int, tuple]
    samples: dict[tuple[int, int], tuple]
    states: dict[str, str]  # file: SHA-256


def undisturbed(folder: Path, output: Path) -> Undisturbed:
    """Of a run that is finished: its output, and the folder that it was submitted in."""
    return Undisturbed(
        {line["step"]: tuple(line[name] for name in PART) for line in _lines(output)},
        {each.step: (each.held_out_loss, each.tokens) for each in read_evaluations(output)},
        dict(_samples(folder)),
        _states(output),
    )


def differences(folder: Path, output: Path, wanted: Undisturbed) -> list[str]:
    """All that is not as it was; every line counts, those of repeated steps too."""
    found = []
    if not (output / FINISHED).exists():
        return ["the run is not finished"]
    lines = _lines(output)
    for line in lines:
        values = tuple(line[name] for name in PART)
        if values != wanted.steps.get(line["step"]):
            found.append(f"step {line['step']}: {values} instead of {wanted.steps.get(line['step'])}")
    if missing := wanted.steps.keys() - {line["step"] for line in lines}:
        found.append(f"steps {sorted(missing)} are not recorded")
    evaluations = {each.step: (each.held_out_loss, each.tokens) for each in read_evaluations(output)}
    if evaluations != wanted.evaluations:
        found.append(f"evaluations: {evaluations} instead of {wanted.evaluations}")
    read = _samples(folder)
    for key, value in read:
        if value != wanted.samples[key]:
            found.append(f"rank, step {key} has read other samples")
    if missing := wanted.samples.keys() - {key for key, _ in read}:
        found.append(f"rank, step {sorted(missing)} have read no samples")
    states = _states(output)
    for name in sorted(states.keys() | wanted.states.keys()):
        if states.get(name) != wanted.states.get(name):
            found.append(f"at the end {name} is another")
    for words in (("ckpt", "verify"), ("goodput",)):
        done = subprocess.run([sys.executable, "-m", "toolkit", *words, str(output)], capture_output=True, text=True)
        if done.returncode:
            found.append(f"toolkit {' '.join(words)} returned {done.returncode}: {done.stdout}{done.stderr}")
    if torn := [path.name for path in output.glob("incomplete-*")]:
        found.append(f"left in the folder: {torn}")
    return found


def _lines(output: Path) -> list[dict]:
    """Every line, those of repeated steps too."""
    return [json.loads(text) for text in (output / STEPS).read_text().splitlines()]


def _samples(folder: Path) -> list[tuple[tuple[int, int], tuple]]:
    """By rank and step; a line that a kill has torn is not one."""
    found = []
    for path in sorted(folder.glob("samples-*.jsonl")):
        rank = int(path.stem.split("-")[1])
        for text in path.read_text().split("\n"):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            found.append(((rank, line["step"]), tuple(line["samples"])))
    return found


def _states(output: Path) -> dict[str, str]:
    """Every file of the last checkpoint and of the result: weights, optimizer, schedule, random states."""
    last = output / (output / "latest").read_text().strip()
    paths = [path for folder in (last, output / "model") for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.name not in (*NOT_STATE, MANIFEST)
    }
