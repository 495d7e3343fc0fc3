"""Goodput: an example by hand, timelines of which everything is known, and a run that was really killed."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import finetune_runs
from toolkit.errors import ToolkitError
from toolkit.record import EvaluationRecord, StepRecord, StepSeconds
from toolkit.runtime import checkpoint, goodput
from toolkit.runtime.telemetry import Telemetry, read_run, read_steps, run_record


def line(step: int, seconds: float, ended: float, restart: int = 0, stall: float = 0.0) -> StepRecord:
    return StepRecord(
        step=step,
        seconds=seconds,
        tokens=1,
        loss=1.0,
        learning_rate=0.1,
        restart=restart,
        ended_unix=ended,
        save_stall_seconds=stall,
    )


def test_an_example_by_hand() -> None:
    """Start at 1000; 30 s of start-up; steps of 10 s; a save of 5 s after step 2; killed 4 s into step 4; 56 s until
    the next start, which needs 20 s and repeats step 3; an evaluation of 8 s after step 4; FINISHED 2 s later."""
    steps = [line(1, 10, 1040), line(2, 10, 1050), line(3, 10, 1065, stall=5)]
    steps += [line(3, 10, 1155, 1), line(4, 10, 1165, 1)]
    evaluations = [EvaluationRecord(step=4, held_out_loss=1.0, tokens=1, seconds=8, restart=1, ended_unix=1173)]
    found = goodput.account([goodput.Start(1000.0), goodput.Start(1125.0)], steps, evaluations, 1175.0)
    assert found.total_seconds == 175
    assert (found.productive_seconds, found.repeated_seconds) == (40, 10)
    assert (found.start_up_seconds, found.save_seconds, found.evaluation_seconds) == (50, 5, 8)
    assert (found.idle_seconds, found.other_seconds) == (60, 2)  # 4 s of the torn step and 56 s
    assert found.goodput == 40 / 175
    assert (found.starts, found.steps, found.repeated_steps) == (2, 4, 1)


def test_a_step_counts_once_with_its_tokens_and_what_was_gone_back_behind_not_at_all(tmp_path: Path) -> None:
    """Killed after step 6 of which 4 were saved; the next start is at step 5, the one after it goes on from 4 again."""
    for begin, end in ((1, 6), (5, 5), (5, 7)):
        record = msgspec.structs.replace(run_record("test", b"{}", 1, "cpu"), process_started_unix=time.time())
        telemetry = Telemetry(tmp_path, record)
        for step in range(begin, end + 1):
            telemetry.step(msgspec.structs.replace(line(step, 1.0, 0.0), tokens=32, samples_seen=4 * step))
        telemetry.close()
        stands = read_steps(tmp_path)
        assert [each.step for each in stands] == list(range(1, end + 1))
        assert sum(each.tokens for each in stands) == 32 * end and stands[-1].samples_seen == 4 * end
        found = goodput.of_run(tmp_path)
        assert (found.steps, found.productive_seconds) == (end, end)
    assert found.repeated_steps == 3 and [each.restart for each in stands] == [0, 0, 0, 0, 2, 2, 2]


def test_parts_are_those_of_the_steps_that_count() -> None:
    """Step 2 was made twice, and step 1 by a version that told no parts."""
    steps = [line(1, 10, 1020), line(2, 10, 1030), line(2, 8, 1050, 1), line(3, 8, 1058, 1)]
    for number, data in ((1, 5.0), (2, 1.0), (3, 2.0)):
        parts = StepSeconds(data=data, forward_backward=4, optimizer=0.5, other=0.5)
        steps[number] = msgspec.structs.replace(steps[number], seconds_by_part=parts)
    found = goodput.account([goodput.Start(1000.0), goodput.Start(1040.0)], steps, [])
    assert found.productive_by_part == {"data": 3, "forward_backward": 8, "optimizer": 1, "other": 1}
    assert goodput.account([goodput.Start(1000.0)], steps[:1], []).productive_by_part == {}


some = st.integers(0, 64).map(lambda n: n / 4)  # sums of quarters are exact


@given(
    st.lists(
        st.tuples(some, some, st.integers(0, 3), st.lists(st.tuples(some, some, some), min_size=1, max_size=6)),
        min_size=1,
        max_size=5,
    )
)
def test_every_second_of_a_timeline_is_in_one_part(starts: list) -> None:
    """A clock is moved forward through known parts; the account must find each of them again, exactly."""
    now, step, began, lines, idle, start_up, save, other = 1000.0, 0, [], [], 0.0, 0.0, 0.0, 0.0
    for restart, (gap, booting, back, made) in enumerate(starts):
        if restart:
            now, idle = now + gap, idle + gap
        began.append(now)
        now, start_up = now + booting, start_up + booting
        step = max(0, step - back)
        for number, (stall, seconds, between) in enumerate(made):
            step += 1
            if number:  # what comes before the first step is start-up
                now, other = now + between, other + between
            now, save = now + stall + seconds, save + stall
            lines.append(line(step, seconds, now, restart, stall))
    if now == 1000.0:
        return
    found = goodput.account([goodput.Start(each) for each in began], lines, [])
    kept: list[StepRecord] = []
    for each in lines:
        kept = [before for before in kept if before.step < each.step] + [each]
    assert found.productive_seconds == sum(each.seconds for each in kept) and found.steps == len(kept)
    assert found.productive_seconds + found.repeated_seconds == sum(each.seconds for each in lines)
    assert (found.idle_seconds, found.start_up_seconds, found.save_seconds) == (idle, start_up, save)
    assert found.other_seconds == other
    assert sum(getattr(found, part) for part in goodput.PARTS) == found.total_seconds == now - 1000.0
    assert 0.0 <= found.goodput <= 1.0


def report(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", "goodput", str(folder), "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_training_run_that_was_really_killed_and_started_again(tmp_path: Path) -> None:
    """Killed a few steps after its newest checkpoint; it ends at --max-steps, with a save after its last step."""
    made = finetune_runs.tiny_plan("ddp", ranks=1, sequence_length=32, micro_batch=16)
    folder = tmp_path / "run"
    command = finetune_runs.command(finetune_runs.write(made, tmp_path), 1, "--save-steps", "4")
    log = (tmp_path / "log").open("w")
    quiet = {"env": finetune_runs.environment(), "stdout": log, "stderr": log}
    first = time.time(), subprocess.Popen([*command, "--max-steps", "1000"], **quiet), time.time()
    deadline = time.monotonic() + 300
    while not (found := newest_checkpoint(folder)) or lines_of(folder)[-1:] < [found + 2]:
        assert first[1].poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.02)
    first[1].kill()
    first[1].wait()
    saved, made_before = newest_checkpoint(folder), read_steps(folder)  # which leaves out a torn last line
    time.sleep(0.5)
    second = time.time(), subprocess.Popen([*command, "--max-steps", str(saved + 3)], **quiet), time.time()
    assert second[1].wait(timeout=300) == 0, (tmp_path / "log").read_text()
    ended = time.time()

    seen = report(folder)
    lost = [each for each in made_before if each.step > saved]  # also those that nobody has made again
    assert lost and (seen["starts"], seen["repeated_steps"]) == (2, len(lost))
    assert seen["repeated_seconds"] == pytest.approx(sum(each.seconds for each in lost))
    assert seen["steps"] == saved + 3
    now = read_steps(folder)
    assert seen["productive_seconds"] == pytest.approx(sum(each.seconds for each in now))
    tick = 0.05  # start times are counted in ticks of 10 ms
    assert second[0] - tick <= made_before[-1].ended_unix + seen["idle_seconds"] <= second[2] + tick
    assert seen["idle_seconds"] >= 0.5
    assert seen["total_seconds"] <= ended - first[0] + tick
    assert seen["total_seconds"] >= now[-1].ended_unix - first[2] - tick
    last = read_run(folder)
    assert last.last_save_stall_seconds > 0 and now[-1].ended_unix < last.ended_unix <= ended
    every = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    stalls = sum(each.get("save_stall_seconds", 0.0) for each in every)
    assert seen["save_seconds"] == pytest.approx(stalls + last.last_save_stall_seconds)
    assert sum(seen[part] for part in goodput.PARTS) == pytest.approx(seen["total_seconds"])
    assert all(seen[part] >= 0 for part in goodput.PARTS)
    assert "the run in" in told(tmp_path) and "2 starts" in told(tmp_path)


def told(folder: Path) -> str:
    """What is shown for the folder of the plan."""
    done = subprocess.run([sys.executable, "-m", "toolkit", "goodput", str(folder)], capture_output=True, text=True)
    return done.stderr + done.stdout


def newest_checkpoint(folder: Path) -> int:
    """The step of the newest whole one; 0 while there is none."""
    text = (folder / "latest").read_text() if (folder / "latest").exists() else ""
    return int(text.strip().rpartition("-")[2] or 0)


def lines_of(folder: Path) -> list[int]:
    """Steps of all whole lines."""
    return [each.step for each in read_steps(folder)] if (folder / "steps.jsonl").exists() else []


def test_a_save_after_the_last_step_counts_and_so_does_a_start_without_a_step() -> None:
    steps = [line(1, 10, 1040), line(2, 10, 1050)]
    starts = [goodput.Start(1000.0, 1057.0, 6.0), goodput.Start(1100.0, 1130.0)]
    found = goodput.account(starts, steps, [])
    assert (found.save_seconds, found.start_up_seconds, found.idle_seconds) == (6, 60, 43)
    assert (found.productive_seconds, found.other_seconds, found.total_seconds) == (20, 1, 130)


def test_what_cannot_tell_says_so(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="cannot read the telemetry"):
        goodput.of_run(tmp_path)
    Telemetry(tmp_path, run_record("x", b"", 1, "cpu")).close()
    with pytest.raises(ToolkitError, match="no step"):
        goodput.of_run(tmp_path)
    (tmp_path / "steps.jsonl").write_text('{"step":1,"seconds":1,"tokens":1,"loss":1,"learning_rate":1}\n')
    with pytest.raises(ToolkitError, match="no times of day"):
        goodput.of_run(tmp_path)


def test_files_that_are_damaged_or_not_of_one_run_are_named(tmp_path: Path) -> None:
    record = run_record("x", b"", 1, "cpu")
    for step in (1, 2):  # of one process, whose second start is as one of another
        began = time.time() if step > 1 else record.process_started_unix
        telemetry = Telemetry(tmp_path, msgspec.structs.replace(record, process_started_unix=began))
        telemetry.step(line(step, 0.001, 0.0))
        telemetry.close()
    steps, earlier = tmp_path / "steps.jsonl", tmp_path / "run.0.json"
    whole, first = steps.read_bytes(), earlier.read_bytes()
    assert goodput.of_run(tmp_path).starts == 2
    steps.write_bytes(whole + b'{"step":3,"sec')  # a kill tore it
    assert goodput.of_run(tmp_path).steps == 2
    for content, said in (
        (whole.replace(b'"step":2', b'"step":"two"'), r"steps\.jsonl, line 2 is damaged"),
        (b"\xff\xfe\n" + whole, r"steps\.jsonl, line 1 is damaged"),
        (whole.replace(b'"ended_unix":1', b'"ended_unix":-1'), "before its start began"),
        (whole.replace(b'"restart":1', b'"restart":4'), "records of 2 starts, and its files tell of 5"),
    ):
        assert content != whole
        steps.write_bytes(content)
        with pytest.raises(ToolkitError, match=said):
            goodput.of_run(tmp_path)
    steps.write_bytes(whole)
    earlier.unlink()
    with pytest.raises(ToolkitError, match="records of 1 starts, and its files tell of 2"):
        goodput.of_run(tmp_path)
    earlier.write_bytes(first[:-20])
    with pytest.raises(ToolkitError, match=r"run\.0\.json is damaged"):
        goodput.of_run(tmp_path)


def written(folder: Path, began: list[float], ended: list[float]) -> Path:
    """A run of one step of 10 s per start."""
    for number, start in enumerate(began):
        record = msgspec.structs.replace(
            run_record("t", b"{}", 1, "cpu"), process_started_unix=start, restart_count=number
        )
        name = f"run.{number}.json" if number < len(began) - 1 else "run.json"
        (folder / name).write_bytes(msgspec.json.encode(record))
    lines = [line(number + 1, 10, end, number) for number, end in enumerate(ended)]
    (folder / "steps.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    return folder


def test_a_copy_of_a_run_has_the_goodput_of_the_run(tmp_path: Path) -> None:
    """The files of a copy are of today; the marker tells when the run ended."""
    now = time.time()
    (tmp_path / "run").mkdir()
    run = written(tmp_path / "run", [now - 30], [now - 10])
    checkpoint.mark_finished(run, {"step": 1})
    before = goodput.of_run(run)
    shutil.copytree(run, tmp_path / "copy", copy_function=shutil.copy)
    os.utime(tmp_path / "copy" / "FINISHED", (now + 86400, now + 86400))
    assert goodput.of_run(tmp_path / "copy") == before
    assert 30 <= before.total_seconds < 90


def test_a_start_that_begins_before_the_end_of_the_one_before_it_tells_nothing(tmp_path: Path) -> None:
    """On a node whose clock is behind: the time between them would be negative, and goodput above 1."""
    (tmp_path / "right").mkdir()
    assert goodput.of_run(written(tmp_path / "right", [1000, 1079], [1080, 1100])).idle_seconds == -1  # within a step
    (tmp_path / "behind").mkdir()
    with pytest.raises(ToolkitError, match="start 1 in .* began 70 s before start 0 gave its last sign"):
        goodput.of_run(written(tmp_path / "behind", [1000, 1010], [1080, 1030]))
