"""Folders that are not what a run has left: damaged newest ones, links, files, other versions, forged manifests."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.killing import ranks
from toolkit.cli import ckpt
from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, durable, manifest
from toolkit.runtime.saver import Saver
from toolkit.runtime.together import ALONE, Group


def make(folder: Path, step: int, name: str = "weights") -> Path:
    path = checkpoint.begin(folder, step)
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(f"{step}" * 10)
    checkpoint.commit(path, {"step": step})
    return path


def flip(path: Path) -> None:
    """A damage that no size tells."""
    content = (path / "weights").read_bytes()
    (path / "weights").write_bytes(bytes([content[0] ^ 1]) + content[1:])


def named(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def rewritten(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    content = json.loads((path / "manifest.json").read_text())
    change(content)
    (path / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_damaged_ones_that_are_newer_push_no_good_one_out(tmp_path: Path, keep: int) -> None:
    """A run that went on from step 10 since 20 and 30 are damaged must not delete what it saves, nor step 10 for them.

    With as many valid ones as there can be, from the next save on, and also where they could not be set aside.
    """
    for aside in (True, False):
        folder = tmp_path / f"{aside}"
        for step in (10, 20, 30):
            make(folder, step)
        flip(folder / "checkpoint-20")
        flip(folder / "checkpoint-30")
        chosen, damaged = checkpoint.choose(folder)
        assert chosen == folder / "checkpoint-10" and [path.name for path in damaged] == [
            "checkpoint-20",
            "checkpoint-30",
        ]
        if aside:
            checkpoint.set_aside(folder, damaged)
            assert named(folder) == ["checkpoint-10", "incomplete-20", "incomplete-30"]
            assert (folder / "latest").read_text() == "checkpoint-10\n"  # it named what has another name now
        saver = Saver(folder, keep=keep, group=ALONE)
        for step, wanted in ((15, [10, 15]), (25, [10, 15, 25])):
            path = saver.begin(step)
            (path / "weights").write_text("x")
            saver.commit(path, {"step": step})
            valid = [path for path in checkpoint.complete(folder) if not checkpoint.verify(path)]
            assert valid[-1].name == f"checkpoint-{step}"
            if aside:
                assert [checkpoint.facts(each)["step"] for each in valid] == wanted[-keep:]


def test_all_damaged_and_all_set_aside(tmp_path: Path) -> None:
    for step in (1, 2):
        flip(make(tmp_path, step))
    chosen, damaged = checkpoint.choose(tmp_path)
    assert (chosen, len(damaged)) == (None, 2)
    checkpoint.set_aside(tmp_path, damaged)
    assert named(tmp_path) == ["incomplete-1", "incomplete-2"] and not (tmp_path / "latest").exists()


def test_another_versions_are_neither_set_aside_nor_deleted(tmp_path: Path) -> None:
    for step in (10, 20):
        rewritten(make(tmp_path, step), lambda content: content.update(schema=2))
    make(tmp_path, 5)
    with pytest.raises(ToolkitError, match="checkpoint-10.* has schema 2, this toolkit reads 1"):
        checkpoint.set_aside_incomplete(tmp_path)
    assert named(tmp_path) == ["checkpoint-10", "checkpoint-20", "checkpoint-5"]
    assert checkpoint.newest_valid(tmp_path) == tmp_path / "checkpoint-5"


def test_what_cannot_be_read_at_this_moment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale handle or a server that is away: the next start may read it."""
    make(tmp_path, 1)
    make(tmp_path, 2)
    read = Path.read_bytes

    def stale(path: Path) -> bytes:
        if path.parent.name == "checkpoint-2":
            raise OSError(116, "Stale file handle")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", stale)
    assert checkpoint.set_aside_incomplete(tmp_path) == []
    assert checkpoint.choose(tmp_path) == (tmp_path / "checkpoint-1", [])
    monkeypatch.undo()
    assert checkpoint.newest_valid(tmp_path) == tmp_path / "checkpoint-2"


def test_the_older_one_of_a_step_goes_only_for_one_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while a step was saved again, and the new one cannot be read at this moment."""
    make(tmp_path, 1).rename(tmp_path / "kept")  # or the commit would delete it
    make(tmp_path, 1)
    (tmp_path / "kept").rename(tmp_path / "checkpoint-1.old")
    read = Path.read_bytes

    def stale(path: Path) -> bytes:
        if path.parent.name == "checkpoint-1":
            raise OSError(116, "Stale file handle")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", stale)
        checkpoint.set_aside_incomplete(tmp_path)
        assert checkpoint.newest_valid(tmp_path) == tmp_path / "checkpoint-1.old"
    checkpoint.set_aside_incomplete(tmp_path)
    assert named(tmp_path) == ["checkpoint-1"]


def test_the_pointer_after_a_kill_while_the_only_step_was_saved_again(tmp_path: Path) -> None:
    make(tmp_path, 4)
    checkpoint.begin(tmp_path, 4)
    assert named(tmp_path) == ["checkpoint-4", "checkpoint-4.old"]
    checkpoint.set_aside_incomplete(tmp_path)
    assert named(tmp_path) == ["checkpoint-4", "incomplete-4"]
    assert (tmp_path / "latest").read_text() == "checkpoint-4\n"
    (tmp_path / "latest").write_text("checkpoint-9\n")  # killed before it was corrected
    checkpoint.set_aside_incomplete(tmp_path)
    assert (tmp_path / "latest").read_text() == "checkpoint-4\n"


def test_one_that_was_moved_to_another_disk_and_linked(tmp_path: Path) -> None:
    """Its files go as those of others do; of a link that is no checkpoint only the link."""
    run, far = tmp_path / "run", tmp_path / "far"
    far.mkdir()
    for step in (10, 20, 30):
        make(run, step)
    (run / "checkpoint-10").rename(far / "checkpoint-10")
    (run / "checkpoint-10").symlink_to(far / "checkpoint-10")
    precious = far / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("all of it")
    (run / "checkpoint-5").symlink_to(precious)
    (run / "checkpoint-6").symlink_to(far / "nowhere")
    assert checkpoint.newest_valid(run) == run / "checkpoint-30"
    checkpoint.set_aside_incomplete(run)
    assert checkpoint.prune(run, 2) == [run / "checkpoint-10"]
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-20", "checkpoint-30", "latest"]
    assert named(far) == ["precious"] and (precious / "thesis.tex").exists()
    (run / "checkpoint-40").symlink_to(far / "nowhere")
    assert make(run, 40) == checkpoint.newest_valid(run)


def test_a_file_with_the_name_of_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").write_text("notes")
    checkpoint.set_aside_incomplete(tmp_path)
    for step in (10, 20, 30):
        make(tmp_path, step)
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-20", "checkpoint-30", "latest"]


def test_what_cannot_be_deleted_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NFS renames what a reader still has open, and the folder is not empty: the others go, and the run goes on."""
    saver = Saver(tmp_path, keep=2, group=ALONE)
    unlink = Path.unlink

    def silly(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "checkpoint-1" and path.name == "weights":
            path.rename(path.with_name(".nfs0001"))
        elif not path.name.startswith(".nfs"):
            unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", silly)
    for step in range(1, 5):
        path = saver.begin(step)
        (path / "weights").write_text("x")
        saver.commit(path, {"step": step})
    assert "note: cannot delete" in capsys.readouterr().err
    assert named(tmp_path) == ["checkpoint-1", "checkpoint-3", "checkpoint-4"]
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-3", "checkpoint-4"]
    checkpoint.set_aside_incomplete(tmp_path)
    monkeypatch.undo()
    checkpoint.prune(tmp_path, 2)
    assert named(tmp_path) == ["checkpoint-3", "checkpoint-4"]


def test_what_goes_while_it_is_looked_at_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run prunes, and somebody lists its checkpoints."""
    for step in (1, 2, 3):
        make(tmp_path, step)
    for moment in ("is_dir", "stat", "iterdir", "rglob"):
        before = getattr(Path, moment)

        def gone(path: Path, *given: object, before: Any = before, **named: object) -> Any:
            if path.name == "checkpoint-1" and (path / "manifest.json").exists():
                checkpoint.discard(path)
            return before(path, *given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(Path, moment, gone)
            for command in ("list", "verify", "latest"):
                done = CliRunner().invoke(ckpt.command, [command, str(tmp_path)])
                assert done.exception is None or isinstance(done.exception, ToolkitError | SystemExit), moment
        make(tmp_path, 1)


def test_what_was_set_aside_makes_room_for_the_save_that_follows(tmp_path: Path) -> None:
    """A disk that was full once would be again: with the torn one beside it, two valid ones and a new one do not fit.

    Where there is nothing whole, what is torn is all that there is, and stays until there is.
    """
    (checkpoint.begin(tmp_path, 10) / "weights").write_text("half")
    checkpoint.set_aside_incomplete(tmp_path)
    checkpoint.begin(tmp_path, 10)
    assert named(tmp_path) == ["checkpoint-10", "incomplete-10"]
    checkpoint.discard(tmp_path / "checkpoint-10")
    make(tmp_path, 10)
    for step in (20, 40):
        (checkpoint.begin(tmp_path, step) / "weights").write_text("half")
    checkpoint.set_aside_incomplete(tmp_path)
    checkpoint.begin(tmp_path, 20)
    assert named(tmp_path) == ["checkpoint-10", "checkpoint-20", "incomplete-40"]


def test_every_folder_of_a_checkpoint_is_brought_to_the_disk(tmp_path: Path) -> None:
    """Also one that holds folders only: without its fsync the names of those may be gone after a power cut."""
    path = checkpoint.begin(tmp_path, 1)
    (path / "a" / "b" / "c").mkdir(parents=True)
    (path / "a" / "b" / "c" / "weights").write_text("x")
    synced: list[Path] = []

    def seen(operation: str, what: Path) -> None:
        if operation == "fsync-directory":
            synced.append(what)

    durable.observers.append(seen)
    try:
        checkpoint.commit(path, {"step": 1})
    finally:
        durable.observers.remove(seen)
    assert {path, path / "a", path / "a" / "b", path / "a" / "b" / "c", tmp_path} <= set(synced)


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/passwd", "a/../../evil", "", ".", "a\0b", "./weights", "a//b", "manifest.json"]
)
def test_a_manifest_names_files_inside_of_its_checkpoint_only(tmp_path: Path, name: str) -> None:
    path = make(tmp_path, 1)
    rewritten(path, lambda content: content.update(files={name: {"bytes": 4, "sha256": "0" * 64}}))
    with pytest.raises(ToolkitError, match="is no manifest"):
        manifest.read(path)
    assert checkpoint.newest_valid(tmp_path) is None
    assert [each.kind for each in checkpoint.verify(path) if each.file == "manifest.json"] == ["unreadable"]


@pytest.mark.parametrize(
    "change", [{"step": -1}, {"step": 10**30}, {"files": {"weights": {"bytes": -1, "sha256": ""}}}]
)
def test_numbers_that_no_save_has_written(tmp_path: Path, change: dict[str, object]) -> None:
    path = make(tmp_path, 1)
    rewritten(path, lambda content: content.update(change))
    with pytest.raises(ToolkitError, match="is no manifest"):
        manifest.read(path)


def test_a_folder_with_the_name_of_another_step(tmp_path: Path) -> None:
    """Copied or renamed by hand, it would be taken for a newer one than it is."""
    make(tmp_path, 10)
    make(tmp_path, 20).rename(tmp_path / "checkpoint-999")
    (damage,) = checkpoint.verify(tmp_path / "checkpoint-999")
    assert (damage.file, damage.kind, damage.fatal) == ("manifest.json", "inconsistent", True)
    assert "step 20" in damage.text
    assert checkpoint.newest_valid(tmp_path) == tmp_path / "checkpoint-10"


def test_a_rank_that_does_not_see_the_folder_ends_the_start_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would go another way: the ranks would wait for one another for ever, or begin at step 0 again."""
    monkeypatch.chdir(tmp_path)
    make(Path("run"), 1)
    (tmp_path / "elsewhere").mkdir()

    def look(group: Group) -> None:
        if group.rank == 1:
            os.chdir(tmp_path / "elsewhere")
        try:
            told = f"{checkpoint.newest_valid(Path('run'), group)}"
        except ToolkitError as error:
            told = error.problems[0].message
        (tmp_path / f"told-{group.rank}").write_text(told)

    assert ranks.run(look, ["a", "b"]) == [0, 0]
    assert {(tmp_path / f"told-{rank}").read_text() for rank in (0, 1)} == {
        "rank 1 on b does not see run/checkpoint-1, which rank 0 on a sees"
    }


def saved(folder: Path, step: int) -> Path:
    path = checkpoint.begin(folder, step)
    (path / "state.bin").write_bytes(b"state")
    checkpoint.commit(path, {"step": step})
    return path


@pytest.mark.parametrize("content", [b"x" * 5000, b"\xff" * 300, b"\0" * 4096, b"", b"checkpoint-9\nmore"])
def test_whatever_a_power_cut_has_left_of_the_pointer_the_start_goes_on(tmp_path: Path, content: bytes) -> None:
    saved(tmp_path, 1)
    (tmp_path / "latest").write_bytes(content)
    assert checkpoint.set_aside_incomplete(tmp_path) == []
    assert (tmp_path / "latest").read_text() == "checkpoint-1\n"


def test_a_folder_in_the_place_of_the_pointer_costs_no_save(tmp_path: Path) -> None:
    """``cp -r checkpoint-400 latest`` of somebody who wants to keep it."""
    (tmp_path / "latest").mkdir()
    saved(tmp_path, 1)
    saved(tmp_path, 2)
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-1", "checkpoint-2"]
    assert checkpoint.set_aside_incomplete(tmp_path) == [] and (tmp_path / "latest").is_dir()


def test_a_link_to_nowhere_where_a_torn_one_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "incomplete-7").symlink_to("nowhere")
    (tmp_path / "checkpoint-7").mkdir()
    assert checkpoint.set_aside_incomplete(tmp_path) == [tmp_path / "incomplete-7"]
    assert (tmp_path / "incomplete-7").is_dir()


def test_a_file_system_that_cannot_fsync_folders(tmp_path: Path) -> None:
    """Linux's own /proc is one; other errors of an fsync count."""
    with pytest.raises(OSError, match="Invalid argument"):
        descriptor = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    durable.sync_directory(Path("/proc"))
    with pytest.raises(FileNotFoundError):
        durable.sync_directory(tmp_path / "not there")
