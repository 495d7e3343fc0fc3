"""A refusal of the file system is told with the room there is, what a checkpoint takes, and which one goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, faults, refused, sums
from toolkit.runtime.save_failed import SaveFailed
from toolkit.runtime.together import ALONE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """With a whole checkpoint and one that is being written."""
    folder = tmp_path / "run"
    path = checkpoint.begin(folder, 2)
    (path / "weights").write_bytes(b"x" * 4096)
    checkpoint.commit(path, {"step": 2})
    (checkpoint.begin(folder, 4) / "weights").write_bytes(b"x")
    return folder


def error(number: int, path: Path | None = None) -> OSError:
    return OSError(number, os.strerror(number), str(path)) if path else OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, "storage"),
        (errno.EDQUOT, "storage"),
        (errno.EFBIG, "storage"),
        (errno.EACCES, "storage"),
        (errno.EPERM, "storage"),
        (errno.EIO, "device"),
        (errno.ESTALE, "device"),
        (errno.EROFS, "device"),
        (errno.ENOTCONN, "device"),
    ],
)
def test_each_number_of_it(number: int, kind: str, run: Path) -> None:
    path = run / "checkpoint-4" / "weights"
    with pytest.raises(SaveFailed) as raised, refused.in_sentences(run, "rank 1 on n2"):
        raise RuntimeError("of a library") from error(number, path)
    assert faults.kind(raised.value) == kind and raised.value.exit_code == 1
    found = raised.value.problems[0]
    assert found.message == f"{path} could not be written (rank 1 on n2): {os.strerror(number)}"
    assert f"{run} has " in found.remedy and "a checkpoint takes 4 KiB (as checkpoint-2)" in found.remedy
    assert "checkpoint-2 is whole" in found.remedy


def test_a_library_that_names_no_file_was_writing_the_newest_checkpoint(run: Path) -> None:
    texts = (
        "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
        "basic_ios::clear: iostream error",
    )
    for text in texts:
        found = refused.explained(RuntimeError(text), run, "rank 0 on n1")
        assert found is not None and found.problems[0].message.startswith(
            f"{run / 'checkpoint-4'} could not be written"
        )


def test_without_a_whole_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / "part").write_bytes(b"x" * 2048)
    found = refused.explained(error(errno.ENOSPC), tmp_path)
    assert found is not None
    assert "a checkpoint takes more than 2 KiB (as much is written of checkpoint-3)" in found.problems[0].remedy
    assert found.problems[0].remedy.endswith(
        "there is no whole checkpoint: mend it or make room, and the same command starts again"
    )


def test_what_all_ranks_raise_together_keeps_who_met_it(run: Path) -> None:
    with pytest.raises(SaveFailed) as raised, refused.in_sentences(run):
        sums.raise_any(run / "checkpoint-4", [f"rank 0: {error(errno.ESTALE, run)}"], ALONE)
    assert (raised.value.rank, raised.value.host, raised.value.kind) == (0, ALONE.hosts[0], "device")
    assert "could not be saved: rank 0: [Errno 116] Stale file handle" in raised.value.problems[0].message
    assert "checkpoint-2 is whole" in raised.value.problems[0].remedy


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    for each in (ToolkitError("belongs to another job"), FileNotFoundError(2, "No such file", "x"), KeyError("x")):
        found = refused.explained(each, tmp_path / "run", "rank 0 on n1")
        assert found is not None and "is gone, or its mount is (rank 0 on n1)" in found.problems[0].message


@pytest.mark.parametrize(
    "other",
    [
        ToolkitError("no such data"),
        ValueError("a bug"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/tokens.bin"),
        PermissionError(errno.EACCES, "Permission denied", "/data/tokens.bin"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.77.0.2]:36297"),
    ],
)
def test_other_errors_are_left_as_they_are(other: Exception, run: Path) -> None:
    with pytest.raises(type(other)) as raised, refused.in_sentences(run):
        raise other
    assert raised.value is other
