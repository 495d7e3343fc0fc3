"""Goodput: an example by hand, timelines of which everything is known, and a run that was really killed."""

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.record import EvaluationRecord, StepRecord, StepSeconds
from toolkit.runtime import goodput
from toolkit.runtime.telemetry import Telemetry, run_record


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
    found = goodput.account([1000.0, 1125.0], steps, evaluations, 1175.0)
    assert found.total_seconds == 175
    assert (found.productive_seconds, found.repeated_seconds) == (40, 10)
    assert (found.start_up_seconds, found.save_seconds, found.evaluation_seconds) == (50, 5, 8)
    assert (found.idle_seconds, found.other_seconds) == (60, 2)  # 4 s of the torn step and 56 s
    assert found.goodput == 40 / 175
    assert (found.starts, found.steps, found.repeated_steps) == (2, 4, 1)


def test_parts_are_those_of_the_steps_that_count() -> None:
    """Step 2 was made twice, and step 1 by a version that told no parts."""
    steps = [line(1, 10, 1020), line(2, 10, 1030), line(2, 8, 1050, 1), line(3, 8, 1058, 1)]
    for number, data in ((1, 5.0), (2, 1.0), (3, 2.0)):
        parts = StepSeconds(data=data, forward_backward=4, optimizer=0.5, other=0.5)
        steps[number] = msgspec.structs.replace(steps[number], seconds_by_part=parts)
    found = goodput.account([1000.0, 1040.0], steps, [])
    assert found.productive_by_part == {"data": 3, "forward_backward": 8, "optimizer": 1, "other": 1}
    assert goodput.account([1000.0], steps[:1], []).productive_by_part == {}


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
    found = goodput.account(began, lines, [])
    last = {each.step: each.seconds for each in lines}
    assert found.productive_seconds == sum(last.values())
    assert found.productive_seconds + found.repeated_seconds == sum(each.seconds for each in lines)
    assert (found.idle_seconds, found.start_up_seconds, found.save_seconds) == (idle, start_up, save)
    assert found.other_seconds == other
    assert sum(getattr(found, part) for part in goodput.PARTS) == found.total_seconds == now - 1000.0
    assert 0.0 <= found.goodput <= 1.0


PROGRAM = """
import os, sys, time
from toolkit.record import StepRecord
from toolkit.runtime.telemetry import Telemetry, run_record
telemetry = Telemetry(sys.argv[1], run_record("x", b"", 1, "cpu"))
for step in range(int(sys.argv[2]), int(sys.argv[3]) + 1):
    since = time.perf_counter(); time.sleep(0.05)
    telemetry.step(StepRecord(step=step, seconds=time.perf_counter() - since, tokens=1, loss=1.0, learning_rate=0.1))
os.kill(os.getpid(), 9)
"""


def test_processes_that_were_really_killed(tmp_path: Path) -> None:
    since = time.time()
    assert subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), "1", "4"]).returncode == -9
    time.sleep(0.3)
    assert subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), "3", "5"]).returncode == -9
    wall = time.time() - since
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", "goodput", str(tmp_path), "--json"], capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert (found["starts"], found["steps"], found["repeated_steps"]) == (2, 5, 2)
    assert found["productive_seconds"] == pytest.approx(5 * 0.05, abs=0.1)
    assert 0.3 <= found["idle_seconds"] < wall
    assert found["total_seconds"] == pytest.approx(wall, abs=0.2)
    assert found["start_up_seconds"] > 0.02
    assert sum(found[part] for part in goodput.PARTS) == pytest.approx(found["total_seconds"])


def test_what_cannot_tell_says_so(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="cannot read the telemetry"):
        goodput.of_run(tmp_path)
    Telemetry(tmp_path, run_record("x", b"", 1, "cpu")).close()
    with pytest.raises(ToolkitError, match="no step"):
        goodput.of_run(tmp_path)
    (tmp_path / "steps.jsonl").write_text('{"step":1,"seconds":1,"tokens":1,"loss":1,"learning_rate":1}\n')
    with pytest.raises(ToolkitError, match="no times of day"):
        goodput.of_run(tmp_path)
