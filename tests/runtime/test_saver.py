"""Saves in the background and copies in durable storage, without a framework."""

import datetime
import json
import resource
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.killing import ranks
from tests.killing.program import right, shard, state
from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, durable, faults, lease, manifest, storage
from toolkit.runtime import refused as refusals
from toolkit.runtime.lease import Lease
from toolkit.runtime.save_failed import CopyFailed
from toolkit.runtime.saver import Saver, start_from_durable
from toolkit.runtime.together import ALONE, Group, TorchGroup


def save(saver: Saver, step: int) -> Path:
    path = saver.begin(step)
    part = path / f"part_{saver.group.rank}"
    part.mkdir()
    (part / "state.bin").write_bytes(shard(state(step, saver.group.rank)))
    saver.commit(path, {"step": step})
    return path


def test_keeps_two_and_tells_the_stall_once(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=2, keep_every=4, group=ALONE)
    for step in range(1, 8):
        save(saver, step)
    saver.close()
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-4", "checkpoint-6", "checkpoint-7"]
    assert (tmp_path / "latest").read_text() == "checkpoint-7\n"
    known = manifest.read(tmp_path / "checkpoint-7")
    assert known.versions["python"] and 0 < known.save_seconds < 600
    assert saver.take_stall_seconds() > 0 == saver.take_stall_seconds()


def test_in_the_background_training_goes_on_and_the_next_save_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, sync = threading.Event(), durable.sync

    def slow(path: Path) -> None:
        gate.wait(10)
        sync(path)

    monkeypatch.setattr(durable, "sync", slow)
    saver = Saver(tmp_path, background=True, group=ALONE)
    save(saver, 1)
    assert checkpoint.complete(tmp_path) == []  # training is on, and nothing is committed
    threading.Timer(0.3, gate.set).start()
    started = time.monotonic()
    save(saver, 2)
    assert time.monotonic() - started > 0.2
    saver.close()
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-1", "checkpoint-2"]
    assert saver.take_stall_seconds() > 0.2


def test_an_error_in_the_background_is_told_at_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        raise OSError(28, "No space left on device")

    saver = Saver(tmp_path, background=True, group=ALONE)
    save(saver, 1)
    saver.wait()
    monkeypatch.setattr(durable, "sync", broken)
    save(saver, 2)
    with pytest.raises(ToolkitError, match="checkpoint-2 could not be saved: rank 0: .*No space left") as error:
        saver.begin(3)
    assert "older checkpoints are as they were" in error.value.problems[0].remedy
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-1"]


def test_a_run_that_lost_its_lease_writes_nothing_more(tmp_path: Path) -> None:
    with Lease(tmp_path, {}, heartbeat_seconds=1000):
        saver = Saver(tmp_path, group=ALONE)
        save(saver, 1)
        path = saver.begin(2)
        (tmp_path / ".lease.7").write_bytes(b'{"host": "another", "pid": 1}')
        with pytest.raises(ToolkitError, match="process 1 on another, which took over"):
            saver.commit(path, {"step": 2})
        with pytest.raises(ToolkitError, match="took over"):
            saver.begin(3)
        assert [each.name for each in checkpoint.complete(tmp_path)] == ["checkpoint-1"]
    lease.require(tmp_path)  # nobody's here: no error


def test_the_manifest_is_the_last_to_arrive_in_durable_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is cut off at any of its files is no checkpoint, and the one before stays."""
    run, far = tmp_path / "run", f"file://{tmp_path}/far"
    saver = Saver(run, group=ALONE)
    for step in (1, 2):
        path = save(saver, step)
        for extra in ("a", "b"):
            (path / extra).write_text(extra)  # more files than one
        checkpoint.commit(path, {"step": step})
    storage.upload(run / "checkpoint-1", far)
    original = storage._pump
    for allowed in range(3):
        count = iter(range(100))

        def cut(source: object, sink: object, allowed: int = allowed, count: object = count) -> str:
            if next(count) >= allowed:  # type: ignore[call-overload]
                raise OSError("the connection is gone")
            return original(source, sink)

        monkeypatch.setattr(storage, "_pump", cut)
        with pytest.raises(ToolkitError, match="the connection is gone"):
            storage.upload(run / "checkpoint-2", far)
        monkeypatch.setattr(storage, "_pump", original)
        assert storage.names(far) == ["checkpoint-1", "checkpoint-2"]
        assert storage.newest(far) == "checkpoint-1"
    storage.upload(run / "checkpoint-2", far)
    assert storage.newest(far, deep=True) == "checkpoint-2"


def test_storage_that_is_away_for_a_while_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, far = tmp_path / "run", f"file://{tmp_path}/far"
    saver, upload = Saver(run, durable=far, group=ALONE), storage.upload

    def away(path: Path, url: str, group: Group) -> None:
        raise ToolkitError(f"{url} is away")

    monkeypatch.setattr(storage, "upload", away)
    save(saver, 1)
    saver.wait()
    assert "is away; it is tried again with the next one" in capsys.readouterr().err
    monkeypatch.setattr(storage, "upload", upload)
    save(saver, 2)
    saver.close()
    assert storage.names(far) == ["checkpoint-2"]
    monkeypatch.setattr(storage, "upload", away)
    save(saver, 3)
    saver.wait()
    monkeypatch.setattr(storage, "upload", upload)
    saver.close()  # the end of the run: once more
    assert storage.newest(far) == "checkpoint-3"
    monkeypatch.setattr(storage, "upload", away)
    save(saver, 4)
    saver.close(goes_on=True)  # a run that was asked to stop is started again
    assert f"{far} is away; it is tried again by the next start" in capsys.readouterr().err


def test_a_last_copy_that_is_refused_is_no_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is done: the next start has nothing to do but to copy it."""
    run, far = tmp_path / "run", f"file://{tmp_path}/far"
    saver, upload = Saver(run, durable=far, group=ALONE), storage.upload

    def refused(path: Path, url: str, group: Group) -> None:
        raise storage.Unreachable(f"{url}: NoCredentialsError: Unable to locate credentials", remedy="look for them")

    monkeypatch.setattr(storage, "upload", refused)
    save(saver, 1)
    with pytest.raises(CopyFailed) as caught:
        saver.close()
    assert (faults.kind(caught.value), caught.value.exit_code) == ("storage", 1)
    assert refusals.explained(caught.value, run) is None  # this disk's room is not what it lacks
    (said,) = caught.value.problems
    assert "Unable to locate credentials" in said.message
    assert said.remedy == "look for them; then the same command copies it"
    with pytest.raises(CopyFailed):
        Saver(run, durable=far, group=ALONE).close()
    monkeypatch.setattr(storage, "upload", upload)
    Saver(run, durable=far, group=ALONE).close()
    assert storage.newest(far, deep=True) == "checkpoint-1"


@pytest.mark.parametrize("damaged", [False, True])
def test_two_ranks_begin_from_durable_storage(tmp_path: Path, damaged: bool) -> None:
    """Also where the newest copy has a flipped byte: its size is right, and it is found out on the way."""
    run, far = tmp_path / "run", f"file://{tmp_path}/far"

    def train(group: Group) -> None:
        saver = Saver(run, durable=far, group=group)
        for step in (1, 2):
            save(saver, step)
        saver.close()

    assert ranks.run(train, ["a", "b"]) == [0, 0]
    shutil.rmtree(run)
    if damaged:
        victim = tmp_path / "far" / "checkpoint-2" / "part_1" / "state.bin"
        victim.write_bytes(bytes([victim.read_bytes()[0] ^ 1]) + victim.read_bytes()[1:])

    def resume(group: Group) -> None:
        if group.rank == 0:
            run.mkdir()
        group.share(None)
        name = start_from_durable(run, far, group)
        newest = checkpoint.newest_valid(run, group)
        (tmp_path / f"got-{group.rank}").write_text(f"{name} {newest and newest.name}")

    assert ranks.run(resume, ["a", "b"]) == [0, 0]
    wanted = "checkpoint-1" if damaged else "checkpoint-2"
    assert {(tmp_path / f"got-{rank}").read_text() for rank in range(2)} == {f"{wanted} {wanted}"}
    assert right(run / wanted, 2)


def test_a_url_that_nothing_knows(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="nowhere://x"):
        storage.names("nowhere://x")
    assert start_from_durable(tmp_path, "", ALONE) is None


def two_saves(tmp_path: Path) -> tuple[Path, str]:
    """A run with steps 1 and 2, and their copies."""
    run, far = tmp_path / "run", f"file://{tmp_path}/far"
    saver = Saver(run, durable=far, group=ALONE)
    for step in (1, 2):
        save(saver, step)
    saver.close()
    return run, far


def holder_of(place: Path) -> str:
    """The run whose copies they are."""
    return str(json.loads((place / "holder.json").read_text())["run_id"])


def flip(folder: Path) -> None:
    victim = folder / "part_0" / "state.bin"
    victim.write_bytes(bytes([victim.read_bytes()[0] ^ 1]) + victim.read_bytes()[1:])


def test_a_copy_that_is_newer_than_what_is_whole_here_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest one here is damaged, its copy is not: no step is lost."""
    run, far = two_saves(tmp_path)
    flip(run / "checkpoint-2")
    chosen, damaged = checkpoint.choose(run)
    assert chosen == run / "checkpoint-1"
    checkpoint.set_aside(run, damaged)
    assert start_from_durable(run, far, ALONE, newer_than=1) == "checkpoint-2"
    assert checkpoint.newest_valid(run) == run / "checkpoint-2" and right(run / "checkpoint-2", 1)
    assert start_from_durable(run, far, ALONE, newer_than=2) is None
    shutil.rmtree(run)  # both copies are damaged, in different places
    flip(tmp_path / "far" / "checkpoint-2")
    assert start_from_durable(run, far, ALONE) == "checkpoint-1"
    said = capsys.readouterr().err
    assert f"note: {far}/checkpoint-2 could not be fetched: rank 0: " in said and "is not what was committed" in said


def test_of_copies_the_course_of_this_run_counts(tmp_path: Path) -> None:
    """A run that went back must not take up again what it left."""
    run, far = two_saves(tmp_path)
    shutil.rmtree(run)
    assert start_from_durable(run, far, ALONE, usable=lambda known: known.step < 2) == "checkpoint-1"


def gone_back(tmp_path: Path) -> tuple[Saver, str]:
    """A run with copies of steps 10, 20 and 30 that has gone back to 10."""
    run, far = tmp_path / "run", f"file://{tmp_path}/far"
    saver = Saver(run, durable=far, group=ALONE)
    for step in (10, 20, 30):
        save(saver, step)
    saver.wait()
    for step in (20, 30):
        checkpoint.discard(run / f"checkpoint-{step}")
    return saver, far


def test_after_going_back_new_copies_are_not_pushed_out_by_what_was_left(tmp_path: Path) -> None:
    saver, far = gone_back(tmp_path)
    for step in (15, 18):
        save(saver, step)
    saver.close()
    assert storage.names(far)[:2] == ["checkpoint-15", "checkpoint-18"]


@pytest.mark.parametrize("newer_than", [-1, 1])
def test_copies_that_cannot_be_read_are_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], newer_than: int
) -> None:
    """A run would begin at its first step again, since a request was refused; one that has a checkpoint goes on."""
    from fsspec.implementations.local import LocalFileSystem

    run, far = two_saves(tmp_path)

    def refused(*_: object, **__: object) -> bytes:
        raise PermissionError("403 Forbidden")

    monkeypatch.setattr(LocalFileSystem, "cat_file", refused)
    if newer_than < 0:
        with pytest.raises(ToolkitError, match="403 Forbidden"):
            start_from_durable(run, far, ALONE)
    else:
        assert start_from_durable(run, far, ALONE, newer_than=newer_than) is None
        assert "403 Forbidden" in capsys.readouterr().err


def test_a_copy_cannot_write_outside_of_the_run(tmp_path: Path) -> None:
    run, far = two_saves(tmp_path)
    shutil.rmtree(run)
    place = tmp_path / "far" / "checkpoint-2" / "manifest.json"
    place.write_text(place.read_text().replace("part_0/state.bin", "../../evil"))
    assert start_from_durable(run, far, ALONE) == "checkpoint-1"
    assert not (tmp_path / "evil").exists()


def test_copies_that_learnt_from_what_is_left_out_by_now_go_with_the_next_copy(tmp_path: Path) -> None:
    """A run that has lost its folder would go on from the newest of them, and so undo that it went back."""
    saver, far = gone_back(tmp_path)
    path = saver.begin(15)
    (path / "weights").write_text("x")
    saver.commit(path, {"step": 15, "skipped_batches": [12]})
    saver.close()
    assert storage.names(far) == ["checkpoint-15"]  # of which two stayed, 10 and 20
    path = saver.begin(25)
    (path / "weights").write_text("x")
    saver.commit(path, {"step": 25, "skipped_batches": [12, 24]})  # 15 has not read that
    saver.close()
    assert storage.names(far) == ["checkpoint-15", "checkpoint-25"]


@pytest.mark.parametrize("moment", ["cat_file", "_open"])
def test_storage_that_refuses_one_rank_leaves_no_other_waiting(tmp_path: Path, moment: str) -> None:
    """Only rank 0 reads the manifest; a file that another rank cannot read is everybody's failure."""
    run, far = two_saves(tmp_path)
    shutil.rmtree(run)

    def resume(group: Group) -> None:
        from fsspec.implementations.local import LocalFileSystem

        def refused(*_: object, **__: object) -> bytes:
            raise PermissionError("403 Forbidden")

        if group.rank == (1 if moment == "cat_file" else 0):  # which reads the only file
            setattr(LocalFileSystem, moment, refused)
        try:
            got = f"{start_from_durable(run, far, group)}"
        except storage.Unreachable as error:
            got = f"{error}"
        (tmp_path / f"got-{group.rank}").write_text(got)

    assert ranks.run(resume, ["a", "b"]) == [0, 0]
    told = {(tmp_path / f"got-{rank}").read_text() for rank in range(2)}
    assert len(told) == 1
    assert "403 Forbidden" in told.pop() if moment == "_open" else told == {"checkpoint-2"}


@pytest.mark.parametrize("newer_than", [-1, 1])
def test_a_disk_without_room_for_a_copy_does_not_begin_the_run_anew(tmp_path: Path, newer_than: int) -> None:
    """All copies are whole, and none can be written here: that is told. One that has a checkpoint goes on from it."""
    run, far = two_saves(tmp_path)
    shutil.rmtree(run)

    def resume(group: Group) -> None:
        run.mkdir()
        (run / "run_id").write_text(holder_of(tmp_path / "far"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # room for the mark of the place
        if newer_than < 0:
            with pytest.raises(storage.Unreachable, match="File too large"):
                start_from_durable(run, far, group)
        else:
            assert start_from_durable(run, far, group, newer_than=newer_than) is None

    assert ranks.run(resume, ["a"]) == [0]


def test_copies_that_may_not_be_deleted_hold_no_run_up(tmp_path: Path) -> None:
    """Credentials that may write and not delete: only rank 0 deletes, so only it meets the refusal."""
    run, far = tmp_path / "run", f"file://{tmp_path}/far"

    def train(group: Group) -> None:
        from fsspec.implementations.local import LocalFileSystem

        def refused(*_: object, **__: object) -> None:
            raise PermissionError("403 Forbidden: s3:DeleteObject")

        if group.rank == 0:
            LocalFileSystem.rm_file = refused
        signal.alarm(20)  # one that waits for the others for ever
        saver = Saver(run, keep=1, durable=far, group=group)
        for step in (1, 2, 3):
            save(saver, step)
            saver.wait()
        saver.close()
        (tmp_path / f"closed-{group.rank}").touch()

    assert ranks.run(train, ["a", "b"]) == [0, 0]
    assert storage.names(far) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert [each.name for each in checkpoint.complete(run)] == ["checkpoint-3"]


def test_a_rank_that_cannot_read_the_manifest_leaves_no_other_waiting(tmp_path: Path) -> None:
    """Only rank 0 reads it before a copy: the node of another may not see it yet, or lose its mount."""
    run, far = tmp_path / "run", f"file://{tmp_path}/far"

    def train(group: Group) -> None:
        signal.alarm(20)
        saver = Saver(run, durable=far, group=group)
        path = save(saver, 1)
        saver.wait()
        if group.rank == 1:
            read = manifest.read

            def blind(checkpoint: str | Path) -> manifest.Manifest:
                if Path(checkpoint).name == "checkpoint-2":
                    raise ToolkitError("cannot read manifest.json: Stale file handle")
                return read(checkpoint)

            manifest.read = blind
        for step in (2, 3):
            path = save(saver, step)
            saver.wait()
        saver.close()
        assert path.name == "checkpoint-3"

    assert ranks.run(train, ["a", "b"]) == [0, 0]
    assert storage.names(far) == ["checkpoint-2", "checkpoint-3"]


@pytest.mark.slow
def test_a_copy_that_takes_longer_than_a_collective_may_ends_no_run(tmp_path: Path) -> None:
    """torch gives every operation of a group 30 minutes; here one second, and rank 1 has a large file to copy."""

    def train(_: Group) -> None:
        from torch.distributed import distributed_c10d

        distributed_c10d.default_pg_timeout = datetime.timedelta(seconds=1)
        group = TorchGroup(own=True)
        if group.rank == 1:
            time.sleep(4)
        (tmp_path / str(group.rank)).write_text(f"{group.share(group.rank)}")

    assert ranks.run(train, ["a", "b"], gloo=True) == [0, 0]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["[0, 1]"] * 2
