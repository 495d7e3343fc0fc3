"""Of ranks that fail, the one that is the cause shows its traceback; all of them write it down."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.runtime import failures, outcome, signals
from toolkit.runtime.outcome import ROOM, Presence

GLOO = RuntimeError("Connection closed by peer [10.0.0.2]:1234")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this-start")
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    monkeypatch.setattr(failures, "PATIENCE", 0.0)
    monkeypatch.setattr(signals.os, "getppid", lambda: 1)  # no launcher to look for
    return tmp_path


def fail(folder: Path, rank: int, error: BaseException) -> None:
    failure = failures.Failure(folder, rank)
    with (
        pytest.raises(failures.Told) as raised,
        failure.told(),
        signals.attended(folder, rank) as stop,
        failure.kept(),
    ):
        stop.agreed(step=4)
        raise error
    assert raised.value.__cause__ is error


def written(folder: Path, rank: int) -> str:
    return (folder / "stacks" / f"error-rank-{rank}.txt").read_text()


def test_the_cause_is_shown_and_its_witness_is_not(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fail(folder, 1, ValueError("a bug"))
    said = capfd.readouterr().err
    assert said.startswith("Traceback") and said.endswith("ValueError: a bug\n")
    fail(folder, 0, GLOO)
    assert capfd.readouterr().err == ""
    assert written(folder, 0).startswith("start this-start\nTraceback") and "closed by peer" in written(folder, 0)
    assert "ValueError: a bug" in written(folder, 1)


def test_without_a_known_cause_a_witness_says_a_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fail(folder, 0, GLOO)
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and said.startswith("rank 0 on n3 has seen another process fail: RuntimeError: Conn")
    assert said.strip().endswith(str(folder / "stacks" / "error-rank-0.txt"))


def test_of_several_with_the_same_error_one_is_shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        Presence(folder, rank).here() if rank == 0 else None
        fail(folder, rank, ValueError("of all"))
    said = capfd.readouterr().err
    assert said.count("Traceback") == 1


def test_what_libraries_raise_beside_exceptions(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Odd(BaseException):
        """torch's CheckpointException is of this kind."""

    fail(folder, 0, Odd("all ranks"))
    assert "Odd: all ranks" in capfd.readouterr().err
    with pytest.raises(ToolkitError), failures.Failure(folder, 0).told():
        raise ToolkitError("told by the program")


def test_an_outcome_fits_into_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no new file gets a byte, the blocks that rank 0 has kept are taken, and then those of a witness."""
    presences = [Presence(folder, rank) for rank in range(2)]
    presences[0].here()
    assert (folder / ROOM).stat().st_size == outcome.ROOM_BYTES
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        write(path, b"")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    presences[1].failed("peer", "a witness")
    found = outcome.read(folder)
    assert found is not None and found.kind == "peer" and not (folder / ROOM).exists()
    presences[0].failed("storage", "the cause " * 100)
    found = outcome.read(folder)
    assert found is not None and (found.kind, found.rank) == ("storage", 0)
    assert [path.name for path in folder.iterdir()] == ["outcome.json"]


def test_what_was_told_to_torchrun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))
    Presence(folder / "away", 1).failed("storage", "no room")
    found = outcome.told_to_torchrun(json.loads((folder / "error.json").read_text()))
    assert found is not None and (found.kind, found.rank, found.reason) == ("storage", 1, "no room")
    for other in (None, {}, {"message": "text"}, {"message": {"extraInfo": {}}}):
        assert outcome.told_to_torchrun(other) is None
