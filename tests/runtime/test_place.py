"""Runs and one place of durable storage: a second is refused, a new machine goes on, and who slept finds out."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, place, storage, telemetry
from toolkit.runtime.holder import Holder
from toolkit.runtime.place import MARK, Mark
from toolkit.runtime.saver import Saver, start_from_durable
from toolkit.runtime.together import ALONE


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(place, "PATIENCE_SECONDS", 0.6)
    monkeypatch.setattr(place, "BEAT_SECONDS", 0.1)
    yield
    place.leave()


def run_of(folder: Path, *steps: int, far: str = "") -> Path:
    saver = Saver(folder, durable=far, group=ALONE)
    for step in steps:
        path = saver.begin(step)
        (path / "weights").write_bytes(os.urandom(100))
        saver.commit(path, {"step": step, "contract": {"seed": 1}})
    saver.close()
    telemetry.run_id(folder)
    return folder


def mark(far: Path) -> Mark:
    found = place.Claim(f"file://{far}", far)._read()  # a file may just be being written
    assert found is not None
    return found


def foreign(far: Path, run_id: str = "other", beats: int = 0, **more: object) -> None:
    """The mark of a process on another machine."""
    holder = Holder(host="another", pid=1, born="1 boot pid", beats=beats)
    made = Mark(run_id=run_id, folder="/there", holder=holder, **more)  # type: ignore[arg-type]
    far.mkdir(exist_ok=True)
    (far / ".half").write_bytes(msgspec.json.encode(made))
    (far / ".half").replace(far / MARK)


def test_two_runs_do_not_push_out_each_others_copies(tmp_path: Path) -> None:
    """Whether the other one still runs or has ended; also where it begins to copy in its middle."""
    far = f"file://{tmp_path}/far"
    one = run_of(tmp_path / "one", 1, 2, far=far)
    two = run_of(tmp_path / "two", 7, 8)
    place.leave()
    assert mark(tmp_path / "far").ended
    before = storage.names(far)
    refusal = r"far holds the copies of another run \(run \w{16} in .*/one, process .*\), not of the one in .*/two"
    with pytest.raises(place.Taken, match=refusal) as error:
        start_from_durable(two, far, ALONE, newer_than=8)
    assert "another --durable" in error.value.problems[0].remedy and error.value.exit_code == 2
    with pytest.raises(place.Taken, match=refusal):
        run_of(two, 9, far=far)
    assert storage.names(far) == before
    run_of(one, 3, far=far)  # whose they are
    assert storage.names(far) == ["checkpoint-2", "checkpoint-3"]


def test_a_new_machine_takes_over_the_id_with_the_copies(tmp_path: Path) -> None:
    far = f"file://{tmp_path}/far"
    one, two = run_of(tmp_path / "one", 1, 2, far=far), tmp_path / "two"
    place.leave()
    assert start_from_durable(two, far, ALONE) == "checkpoint-2"
    assert telemetry.known_run_id(two) == telemetry.known_run_id(one) == mark(tmp_path / "far").run_id != ""
    assert mark(tmp_path / "far").folder == str(two)
    run_of(two, 3, far=far)
    record = telemetry.run_record("a", b"plan", 1, "cpu")
    telemetry.Telemetry(two, record).close()
    telemetry.Telemetry(two, record).close()
    assert telemetry.read_run(two).run_id == telemetry.known_run_id(one)


def test_copies_of_before_there_were_marks_are_taken_as_they_are(tmp_path: Path) -> None:
    far = f"file://{tmp_path}/far"
    one = run_of(tmp_path / "one", 1, 2)
    storage.upload(one / "checkpoint-2", far)
    assert start_from_durable(tmp_path / "two", far, ALONE) == "checkpoint-2"
    assert mark(tmp_path / "far").folder == str(tmp_path / "two")


@pytest.mark.parametrize("beats", [True, False], ids=["alive", "dead"])
def test_a_holder_on_another_machine_is_watched(tmp_path: Path, beats: bool) -> None:
    far, done = tmp_path / "far", threading.Event()
    foreign(far)

    def beat() -> None:
        count = 0
        while beats and not done.wait(0.02):
            count += 1
            foreign(far, beats=count)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        if beats:
            with pytest.raises(place.Taken, match="far is in use by run other in /there, process 1 on another"):
                start_from_durable(tmp_path / "two", f"file://{far}", ALONE)
        else:
            started = time.monotonic()
            assert start_from_durable(tmp_path / "two", f"file://{far}", ALONE) is None
            assert time.monotonic() - started >= 0.6 and mark(far).run_id == "other"
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}], ids=["ended", "job"])
def test_who_has_ended_is_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    monkeypatch.setattr(place, "PATIENCE_SECONDS", 1000.0)
    if environment:
        holder = Holder(host="another", pid=1, job_id="7")
        (tmp_path / "far").mkdir()
        made = Mark(run_id="other", folder="/there", holder=holder)
        (tmp_path / "far" / MARK).write_bytes(msgspec.json.encode(made))
    else:
        foreign(tmp_path / "far", ended=True)
    claim = place.Claim(f"file://{tmp_path}/far", tmp_path / "two", environment)
    claim.take()
    claim.leave()
    assert mark(tmp_path / "far").run_id == "other" and mark(tmp_path / "far").ended


def test_a_killed_process_of_this_machine_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "PATIENCE_SECONDS", 1000.0)
    far = f"file://{tmp_path}/far"
    code = "import os, sys\nfrom toolkit.runtime import place\nplace.require(*sys.argv[1:])\nos.kill(os.getpid(), 9)\n"
    words = [sys.executable, "-c", code, far, str(tmp_path / "one")]
    assert subprocess.run(words, check=False).returncode == -9
    assert not mark(tmp_path / "far").ended
    place.require(far, tmp_path / "two")
    assert mark(tmp_path / "far").folder == str(tmp_path / "two")


def test_who_slept_finds_another_before_its_next_copy(tmp_path: Path) -> None:
    far = f"file://{tmp_path}/far"
    run_of(tmp_path / "one", 1, far=far)
    foreign(tmp_path / "far", run_id=mark(tmp_path / "far").run_id)
    time.sleep(0.3)  # its signs of life do not take the place back
    assert mark(tmp_path / "far").holder.host == "another"
    with pytest.raises(place.Taken, match="belongs to another start by now"):
        run_of(tmp_path / "one", 2, far=far)
    assert storage.names(far) == ["checkpoint-1"]
    assert len(checkpoint.complete(tmp_path / "one")) == 2  # what is saved here is whole


def test_nothing_is_written_to_the_place_of_another_experiment(tmp_path: Path) -> None:
    far = f"file://{tmp_path}/far"
    run_of(tmp_path / "one", 1, far=far)
    place.leave()
    before = (tmp_path / "far" / MARK).read_bytes()

    def refused(saved: dict[str, object], where: str) -> None:
        raise ToolkitError(f"{where} belongs to another experiment")

    with pytest.raises(ToolkitError, match="another experiment"):
        start_from_durable(tmp_path / "two", far, ALONE, refused)
    assert (tmp_path / "far" / MARK).read_bytes() == before
    assert not (tmp_path / "two").exists()


def test_signs_of_life_are_written(tmp_path: Path) -> None:
    place.require(f"file://{tmp_path}/far", tmp_path / "one")
    end = time.monotonic() + 60
    while mark(tmp_path / "far").holder.beats < 3:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_storage_that_does_not_answer_holds_no_end_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning of a preemption is short, and the checkpoint has been saved by then."""
    place.require(f"file://{tmp_path}/far", tmp_path / "one")
    answers, opened = threading.Event(), storage.opened

    def silent(url: str) -> object:
        answers.wait(300)
        return opened(url)

    monkeypatch.setattr(storage, "opened", silent)
    monkeypatch.setattr(place, "LEAVE_SECONDS", 0.2)
    started = time.monotonic()
    place.leave()
    assert time.monotonic() - started < 100
    answers.set()


def test_an_error_names_the_url_as_it_is(tmp_path: Path) -> None:
    run = run_of(tmp_path / "one", 1)
    (run / "checkpoint-1" / "weights").unlink()
    with pytest.raises(ToolkitError, match=f"file://{tmp_path}/far/checkpoint-1 could not be saved"):
        storage.upload(run / "checkpoint-1", f"file://{tmp_path}/far")
