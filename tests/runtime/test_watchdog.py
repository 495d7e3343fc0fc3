"""Hangs that are real: a process that is stopped, one that sleeps where it should not, a lock that is never given."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.runtime import durable, outcome
from toolkit.runtime.hang import FOLDER, HUNG, MARK, Place, read_hang, written
from toolkit.runtime.watchdog import Limits, Watchdog, limit

# Ranks that meet at every step through files, as a collective would make them wait for one another.
RANK = """
import sys, time
from pathlib import Path
from toolkit.runtime.watchdog import Limits, Watchdog
folder, rank, sleeper, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), 2
dog = Watchdog(folder, rank, size, Limits(floor=2.0, ceiling=20.0, start_up=60.0, poll=0.1))
dog.start()

def wait_for_all(step):
    (folder / f"at-{step}-{rank}").touch()
    while len(list(folder.glob(f"at-{step}-*"))) < size:
        time.sleep(0.01)

def load_data(step):
    if rank == sleeper and step == 12:
        time.sleep(100)

for step in range(1, int(sys.argv[4])):
    with dog.section("data", step):
        load_data(step)
    with dog.section("step", step):
        time.sleep(0.02)
        wait_for_all(step)
dog.stop()
"""


def start(folder: Path, sleeper: int, steps: int = 200) -> list[subprocess.Popen]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(folder), str(rank), str(sleeper), str(steps)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def test_of_an_evaluation_each_batch_counts(tmp_path: Path) -> None:
    """One of a thousand batches is no hang however long all take, before five evaluations are known."""
    dog = Watchdog(tmp_path, 0, 1, Limits(floor=120.0, ceiling=1800.0))
    dog.enter("evaluation", 8)
    for _ in range(4):
        dog._since -= 1700.0
        assert dog.place().seconds < dog.place().limit == 1800.0
        dog.went_on("evaluation")
    dog._since -= 1900.0
    dog.went_on("step")  # it is in no step
    assert dog.place().seconds > dog.place().limit
    dog.went_on("evaluation")
    for _ in range(5):
        dog._since -= 400.0
        dog.went_on("evaluation")
    assert dog.place().limit == 1800.0  # 2 * 1050, and no more than the ceiling
    for _ in range(100):
        dog._since -= 400.0
        dog.went_on("evaluation")
    assert dog.place().limit == pytest.approx(800.0, abs=1.0)


def wait_until(path: Path) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


@given(st.lists(st.floats(0.01, 1e4), max_size=30))
def test_the_limit_is_between_floor_and_ceiling(durations: list[float]) -> None:
    limits = Limits(floor=10.0, ceiling=1000.0)
    found = limit(durations, limits)
    assert 10.0 <= found <= 1000.0
    if len(durations) < 5:
        assert found == 1000.0


def test_the_limit_by_hand() -> None:
    limits = Limits(floor=1.0, ceiling=1000.0)
    assert limit([8.0, 9.0, 10.0, 11.0, 12.0], limits) == pytest.approx(10.0 + 10 * 1.4826 * 1.0)
    assert limit([4.0, 7.0, 10.0, 13.0, 16.0], limits) == pytest.approx(10.0 + 10 * 1.4826 * 3.0)
    assert limit([10.0] * 9 + [500.0], limits) == 20.0  # one slow one teaches nothing


def test_a_run_without_hang_is_left_alone(tmp_path: Path) -> None:
    assert [process.wait(120) for process in start(tmp_path, -1, 30)] == [0, 0]
    assert not (tmp_path / "stacks" / "HANG").exists()


def test_a_rank_that_sleeps_in_its_data_is_named_with_all_stacks(tmp_path: Path) -> None:
    ranks = start(tmp_path, 1)
    said = [process.communicate(timeout=120)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [HUNG, HUNG]
    assert "load_data" in (tmp_path / "stacks" / "rank-1.txt").read_text()
    assert "wait_for_all" in (tmp_path / "stacks" / "rank-0.txt").read_text()
    found = read_hang(tmp_path, 2)
    assert {each.rank: each.section for each in found.ranks} == {0: "step", 1: "data"}
    assert "the run hangs" in "".join(said)
    told = outcome.read(tmp_path)
    assert told is not None and (told.state, told.kind, told.rank, told.told) == (
        "failed",
        "hang",
        found.first.rank,
        True,
    )
    assert told.reason.startswith("the run hangs: ") and "\n" not in told.reason


@pytest.mark.slow
def test_a_stopped_rank_is_named_as_silent(tmp_path: Path) -> None:
    ranks = start(tmp_path, -1)
    wait_until(tmp_path / "at-10-0")
    ranks[1].send_signal(signal.SIGSTOP)
    try:
        said = ranks[0].communicate(timeout=120)[1]
        assert ranks[0].returncode == HUNG
        assert "no answer from rank 1" in said
        assert read_hang(tmp_path, 2).silent == (1,)
    finally:
        ranks[1].kill()
        ranks[1].communicate()


@pytest.mark.slow
def test_a_job_that_was_suspended_as_a_whole_goes_on(tmp_path: Path) -> None:
    ranks = start(tmp_path, -1, 60)
    wait_until(tmp_path / "at-10-0")
    for process in ranks:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(4.0)  # longer than the limit, which is the floor by now
    for process in ranks:
        os.kill(process.pid, signal.SIGCONT)
    assert [process.wait(120) for process in ranks] == [0, 0]


@pytest.mark.parametrize("hours", [-2.0, 2.0])
def test_a_node_whose_clock_is_wrong_sees_the_mark_of_its_own_start_and_no_older_one(
    tmp_path: Path, hours: float
) -> None:
    """The file server's clock stamps the marks: by this node's they are of the future, or long past."""
    stacks, left = tmp_path / FOLDER, list[int]()
    stacks.mkdir()
    there = time.time() + 3600.0 * hours

    def stamped(name: str, rank: int) -> None:
        durable.replace(stacks / name, msgspec.json.encode(Place(rank=rank, section="step", step=7, seconds=9.0)))
        os.utime(stacks / name, (there, there))

    stamped(MARK, 0)
    for rank in (0, 1):
        stamped(f"rank-{rank}.json", rank)
    dog = Watchdog(tmp_path, 1, 2, Limits(floor=60.0, ceiling=60.0, poll=0.05), leave=left.append)
    dog.start()
    time.sleep(1.0)
    assert not left  # a hang of the start before, which rank 0 has not removed yet
    stamped("rank-0.json", 0)
    stamped(MARK, 0)
    wait_until(stacks / "rank-1.txt")
    end = time.monotonic() + 120
    while not left:
        assert time.monotonic() < end
        time.sleep(0.01)
    dog.stop()
    assert left == [HUNG] and read_hang(tmp_path, 2).silent == ()


# A rank whose start hangs, in a process that is refused what `sys.argv[2]` says: for a moment, or from then on.
REFUSED = """
import os, resource, sys, time
from pathlib import Path
from toolkit.runtime.watchdog import Limits, Watchdog
dog = Watchdog(Path(sys.argv[1]), 0, 1, Limits(floor=1.0, ceiling=1.0, start_up=2.0, poll=0.05))
dog.start()
kind = getattr(resource, sys.argv[2])
soft, hard = resource.getrlimit(kind)
resource.setrlimit(kind, (0, hard))
if sys.argv[3] == "moment":
    time.sleep(0.5)
    resource.setrlimit(kind, (soft, hard))
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("what", "how_long"),
    [("RLIMIT_NOFILE", "moment"), pytest.param("RLIMIT_FSIZE", "always", marks=pytest.mark.slow)],
)
def test_what_the_file_system_refuses_does_not_end_the_watch(tmp_path: Path, what: str, how_long: str) -> None:
    """No descriptors for a moment, or nothing can be written: the thread goes on, and the hang is still ended.

    A thread that had ended would leave the timer in C behind, which ends a run that is well a day later.
    """
    command = [sys.executable, "-c", REFUSED, str(tmp_path), what, how_long]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=50, check=False)
    assert done.returncode == HUNG, done.stderr
    assert "start-up" in done.stderr and "Exception in thread" not in done.stderr


def test_a_strange_file_among_the_stacks_is_nobody(tmp_path: Path) -> None:
    (tmp_path / "rank-0 (copy).json").touch()
    (tmp_path / "rank-3.json").touch()
    assert written(tmp_path, {}) == [3]
