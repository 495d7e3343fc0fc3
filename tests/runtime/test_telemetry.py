"""run.json and steps.jsonl survive kills, restarts and diverged losses."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from toolkit.record import EvaluationRecord, RunRecord, StepRecord
from toolkit.runtime import durable
from toolkit.runtime.telemetry import (
    EVALUATIONS,
    STEPS,
    Telemetry,
    known_run_id,
    read_evaluations,
    read_run,
    read_steps,
    run_record,
    wandb_reporting,
)


def record(step: int, loss: float = 1.0) -> StepRecord:
    return StepRecord(step=step, seconds=0.1, tokens=8, loss=loss, learning_rate=1e-3)


@pytest.fixture
def run() -> RunRecord:
    return run_record("test", b"{}", 2, "cpu")


def test_what_is_written_is_read(tmp_path: Path, run: RunRecord) -> None:
    telemetry = Telemetry(tmp_path, run)
    telemetry.step(record(1, 2.5))
    telemetry.step(record(2, 2.0))
    assert [step.loss for step in read_steps(tmp_path)] == [2.5, 2.0]  # also before it is closed
    assert read_run(tmp_path) == msgspec.structs.replace(run, run_id=known_run_id(tmp_path))
    telemetry.close(0.25)
    told = read_run(tmp_path)
    assert (told.last_save_stall_seconds, told.ended_unix > told.process_started_unix) == (0.25, True)
    assert run.plan_sha256 == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # sha256 of "{}"
    assert run.versions["python"] == ".".join(map(str, sys.version_info[:3]))


def test_only_rank_0_writes(tmp_path: Path, run: RunRecord) -> None:
    telemetry = Telemetry(tmp_path / "run", run, rank=1)
    telemetry.step(record(1))
    telemetry.close()
    assert not (tmp_path / "run").exists()


def test_a_torn_line_is_cut_off_and_a_repeated_step_counts_once(tmp_path: Path, run: RunRecord) -> None:
    first = Telemetry(tmp_path, run)
    for step in (1, 2, 3):
        first.step(record(step, 10.0 + step))
    first.close()
    with (tmp_path / STEPS).open("ab") as file:
        file.write(b'{"step":4,"sec')  # killed while writing
    assert [step.step for step in read_steps(tmp_path)] == [1, 2, 3]
    second = Telemetry(tmp_path, run)  # resumes after step 2
    second.step(record(3, 20.0))
    second.step(record(4, 21.0))
    second.close()
    assert [(step.step, step.loss) for step in read_steps(tmp_path)] == [(1, 11.0), (2, 12.0), (3, 20.0), (4, 21.0)]
    for line in (tmp_path / STEPS).read_text().splitlines():
        json.loads(line)


def test_every_start_is_kept(tmp_path: Path, run: RunRecord) -> None:
    for _ in range(3):
        Telemetry(tmp_path, run).close()
    assert [json.loads((tmp_path / f"run.{n}.json").read_text())["restart_count"] for n in (0, 1)] == [0, 1]
    assert read_run(tmp_path).restart_count == 2


def test_a_diverged_loss_can_be_written_and_read(tmp_path: Path, run: RunRecord) -> None:
    telemetry = Telemetry(tmp_path, run)
    telemetry.step(record(1, float("nan")))
    telemetry.step(record(2, float("inf")))
    telemetry.close()
    assert [step.loss for step in read_steps(tmp_path)] == [None, None]


def test_steps_survive_kill_9(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from toolkit.record import StepRecord\n"
        "from toolkit.runtime.telemetry import Telemetry, run_record\n"
        "t = Telemetry(sys.argv[1], run_record('x', b'', 1, 'cpu'))\n"
        "for n in range(1, 6):\n"
        "    t.step(StepRecord(step=n, seconds=0.1, tokens=1, loss=1.0, learning_rate=0.1))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)])
    assert done.returncode == -9
    assert [step.step for step in read_steps(tmp_path)] == [1, 2, 3, 4, 5]


def test_replacing_a_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    durable.replace(tmp_path / "file", b"old")
    durable.replace(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_wandb_only_when_asked_for_and_offline_unless_told(tmp_path: Path) -> None:
    assert not wandb_reporting(tmp_path, {"PATH": "/bin"})
    assert not wandb_reporting(tmp_path, {"WANDB_PROJECT": "p", "WANDB_MODE": "disabled"})
    assert list(tmp_path.iterdir()) == []
    first, second = {"WANDB_PROJECT": "p"}, {"WANDB_PROJECT": "p", "WANDB_MODE": "online"}
    assert wandb_reporting(tmp_path, first) and wandb_reporting(tmp_path, second)
    assert (first["WANDB_MODE"], second["WANDB_MODE"]) == ("offline", "online")
    assert first["WANDB_RUN_ID"] == second["WANDB_RUN_ID"]  # one run over all restarts
    with_key = {"WANDB_API_KEY": "k"}
    assert wandb_reporting(tmp_path, with_key) and with_key["WANDB_MODE"] == "online"


def test_the_sender_of_another_process_is_no_wish_to_report(tmp_path: Path) -> None:
    inherited = {"WANDB_SERVICE": "3-12345-unix-/tmp/nowhere"}
    assert not wandb_reporting(tmp_path, inherited) and inherited == {}
    asked = inherited | {"WANDB_PROJECT": "p", "WANDB_SERVICE": "3-12345-unix-/tmp/nowhere"}
    assert wandb_reporting(tmp_path, asked) and "WANDB_SERVICE" not in asked


def test_evaluations_are_read_back_and_the_later_one_holds(run: RunRecord, tmp_path: Path) -> None:
    assert read_evaluations(tmp_path) == []
    telemetry = Telemetry(tmp_path, run)
    for step, loss in ((0, 3.0), (2, 2.0), (2, 1.5)):
        telemetry.evaluation(EvaluationRecord(step=step, held_out_loss=loss, tokens=7, seconds=0.1))
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 4')  # torn by a kill
    Telemetry(tmp_path, run).evaluation(EvaluationRecord(step=4, held_out_loss=1.0, tokens=7, seconds=0.1))
    Telemetry(tmp_path, run, rank=1).evaluation(EvaluationRecord(step=9, held_out_loss=9.0, tokens=7, seconds=0.1))
    assert [(each.step, each.held_out_loss) for each in read_evaluations(tmp_path)] == [(0, 3.0), (2, 1.5), (4, 1.0)]


@pytest.mark.parametrize("damage", [b"\0" * 40, b'{"step":2,"sec', b'{"step":"2"}', b"[]", b"\xff\xfe", b"{" * 9999])
def test_a_line_that_is_damaged_keeps_no_run_from_going_on(tmp_path: Path, run: RunRecord, damage: bytes) -> None:
    """A power cut leaves zeros, a frozen job that thaws a line in the middle of another's: every start reads them."""
    first = Telemetry(tmp_path, run)
    for step in (1, 2, 3):
        first.step(record(step))
        first.evaluation(EvaluationRecord(step=step, held_out_loss=1.0, tokens=8, seconds=0.1))
    first.close()
    for name in (STEPS, EVALUATIONS):
        lines = (tmp_path / name).read_bytes().split(b"\n")
        (tmp_path / name).write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))
    Telemetry(tmp_path, run).step(record(4))
    assert [step.step for step in read_steps(tmp_path)] == [1, 3, 4]
    assert [each.step for each in read_evaluations(tmp_path)] == [1, 3]
