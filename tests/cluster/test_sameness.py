"""The judge of a soak: it passes a run that went on as if nothing had happened, and tells everything that is not so."""

import json
import shutil
import struct
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cluster import sameness
from toolkit.record import EvaluationRecord, RunRecord, StepRecord
from toolkit.runtime import checkpoint
from toolkit.runtime.telemetry import STEPS, Telemetry, run_record

LAST, SAVED = 6, (4, 6)


def loss(step: int) -> float:
    return 5.0 / step


def record() -> RunRecord:
    """Of a start whose process begins now: this one began long ago, in the middle of an earlier start."""
    return replace(run_record("tiny", b"{}", 2, "cpu"), process_started_unix=time.time())


def start(folder: Path, first: int, last: int) -> None:
    """One start of a run on two ranks, from a step to another."""
    output = folder / "run"
    written = Telemetry(output, record())
    for step in range(first, last + 1):
        values = {"loss": loss(step), "learning_rate": 0.1, "gradient_norm": 1.0 / step, "samples_seen": 16 * step}
        written.step(StepRecord(step=step, seconds=0.1, tokens=128, **values))
        for rank in (0, 1):
            with (folder / f"samples-{rank}.jsonl").open("a") as file:
                print(json.dumps({"step": step, "samples": [f"{step}-{rank}"]}), file=file)
        if step in SAVED and not (output / f"checkpoint-{step}").exists():
            path = checkpoint.begin(output, step)
            (path / "state.bin").write_bytes(struct.pack("d", loss(step)))
            checkpoint.commit(path, {"step": step})
    written.close()


def run(folder: Path, *starts: tuple[int, int]) -> Path:
    for first, last in starts:
        start(folder, first, last)
    output = folder / "run"
    Telemetry(output, record()).evaluation(EvaluationRecord(step=LAST, held_out_loss=2.0, tokens=9, seconds=0.1))
    (output / "model").mkdir()
    (output / "model" / "model.safetensors").write_bytes(b"weights")
    checkpoint.mark_finished(output, {"step": LAST})
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[sameness.Undisturbed, Path]:
    """What the run is, and one that was killed twice."""
    straight = run(tmp_path_factory.mktemp("straight"), (1, LAST))
    disturbed = run(tmp_path_factory.mktemp("disturbed"), (1, 3), (1, 5), (5, LAST))
    return sameness.undisturbed(straight, straight / "run"), disturbed


def test_a_run_that_was_killed_twice_is_the_same(runs: tuple[sameness.Undisturbed, Path]) -> None:
    wanted, folder = runs
    assert sameness.differences(folder, folder / "run", wanted) == []


def _line(folder: Path, name: str, number: int, **values: object) -> None:
    path = folder / name
    lines = path.read_text().splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | values)
    path.write_text("\n".join(lines) + "\n")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def _without_line(path: Path, number: int) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:number] + lines[number + 1 :]) + "\n")


HARM = {
    "a loss of a step that was repeated": (lambda f: _line(f, "run/steps.jsonl", 1, loss=loss(2) + 1e-15), "step 2: "),
    "a gradient norm": (lambda f: _line(f, "run/steps.jsonl", 9, gradient_norm=0.5), "step 6: "),
    "a step that nobody did": (lambda f: _without_line(f / "run" / STEPS, 9), "steps [6] are not recorded"),
    "other samples": (lambda f: _line(f, "samples-1.jsonl", 4, samples=["9"]), "has read other samples"),
    "samples left out": (lambda f: (f / "samples-1.jsonl").unlink(), "have read no samples"),
    "an evaluation": (lambda f: _line(f, "run/evaluations.jsonl", 0, held_out_loss=2.5), "evaluations: "),
    "the weights": (lambda f: _flip(f / "run" / "model" / "model.safetensors"), "model/model.safetensors is another"),
    "the last checkpoint": (lambda f: _flip(f / "run" / "checkpoint-6" / "state.bin"), "ckpt verify returned 1"),
    "one that is torn": (lambda f: (f / "run" / "incomplete-4").mkdir(), "left in the folder: ['incomplete-4']"),
    "no marker": (lambda f: (f / "run" / "FINISHED").unlink(), "the run is not finished"),
}


@pytest.mark.parametrize("name", HARM)
def test_what_is_not_the_same_is_told(runs: tuple[sameness.Undisturbed, Path], tmp_path: Path, name: str) -> None:
    wanted, whole = runs
    harm, said = HARM[name]
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    harm(folder)
    assert any(said in each for each in sameness.differences(folder, folder / "run", wanted))
