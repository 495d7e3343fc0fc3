"""Folders and files that the user of a run may not read or write: passed over, or a sentence; never a traceback."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli.ckpt import command
from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, found
from toolkit.runtime.lease import Lease

NOBODY = 65534


def as_nobody(action: Callable[[], object]) -> str:
    """What an action returns, or the sentence that it ends with, for a user whom modes keep out (root they do not)."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            said = str(action())
        except ToolkitError as error:
            said = error.problems[0].message
        except BaseException as error:
            said = f"traceback: {error!r}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def run() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="unreadable-"))  # pytest's own folders let nobody in
    folder.chmod(0o777)
    for step in (1, 2, 3, 4):
        path = checkpoint.begin(folder, step)
        (path / "inner").mkdir()
        for name in ("a", "inner/b"):
            (path / name).write_text(str(step))
        checkpoint.commit(path, {"step": step})
        path.chmod(0o777)
    yield folder
    for path in (folder, *(folder.glob("*-*"))):
        path.chmod(0o777)
    for path in folder.glob("*-*/inner"):
        path.chmod(0o777)
    shutil.rmtree(folder)


def test_a_checkpoint_that_cannot_be_read_is_passed_over(run: Path) -> None:
    (run / "checkpoint-2").chmod(0)
    (run / "checkpoint-3" / "inner").chmod(0)
    (run / "checkpoint-4" / "a").chmod(0)
    assert as_nobody(lambda: checkpoint.newest_valid(run)) == str(run / "checkpoint-1")

    def broken() -> list[tuple[str, list[tuple[str, str]]]]:
        return [(each.name, [(d.file, d.kind) for d in each.damage()]) for each in found.look(run)]

    assert as_nobody(broken) == str(
        [
            ("checkpoint-1", []),
            ("checkpoint-2", [("checkpoint-2", "unreadable")]),
            ("checkpoint-3", [("inner", "unreadable"), ("inner/b", "unreadable")]),
            ("checkpoint-4", [("a", "unreadable")]),
        ]
    )
    latest = as_nobody(lambda: CliRunner().invoke(command, ["latest", str(run)]).stdout)
    assert latest == f"{run}/checkpoint-1\n"


@pytest.mark.parametrize("mode", [0o555, 0])
def test_an_output_directory_that_is_not_the_users(mode: int, run: Path) -> None:
    run.chmod(mode)
    assert as_nobody(lambda: Lease(run, {}).__enter__()) == f"cannot write in {run}: Permission denied"
    assert as_nobody(lambda: checkpoint.begin(run, 9)).startswith(f"{run}/checkpoint-9 could not be saved")
    listed = as_nobody(lambda: CliRunner().invoke(command, ["list", str(run)]).exception)
    if mode:
        assert as_nobody(lambda: checkpoint.newest_valid(run)) == str(run / "checkpoint-4")
        assert listed == "None"
        return
    for action in (checkpoint.newest_valid, checkpoint.set_aside_incomplete):
        assert as_nobody(lambda action=action: action(run)) == f"cannot read {run}: Permission denied"
    assert as_nobody(lambda: checkpoint.finished(run)).startswith(f"cannot read {run}/FINISHED")
    assert listed.startswith(f"cannot read {run}: Permission denied")
