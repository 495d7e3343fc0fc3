"""Ranks that a signal has killed are named from the exit codes that torchrun has seen."""

import signal
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from toolkit.runtime import killed, outcome
from toolkit.runtime.outcome import Outcome

WITNESS = Outcome(
    state="failed", kind="peer", step=40, rank=0, node="n1", reason="RuntimeError: Read error", attempt="a"
)


def failures(**codes: int) -> dict[int, SimpleNamespace]:
    return {
        int(name[1:]): SimpleNamespace(exitcode=code, pid=1000 + int(name[1:]), error_file_data=None)
        for name, code in codes.items()
    }


@pytest.mark.parametrize(
    ("codes", "rank", "said"),
    [
        ({"r0": 1, "r1": -9}, 1, "rank 1 was killed by SIGKILL (out of memory of the host, or somebody's kill)"),
        ({"r0": -6, "r3": -9}, 3, "rank 3 was killed by SIGKILL (out of memory of the host, or somebody's kill)"),
        ({"r0": -6, "r2": -11}, 2, "rank 2 was killed by SIGSEGV (a fault of native code, or of memory)"),
        ({"r1": -9, "r2": -9}, 1, "ranks 1, 2 were killed by SIGKILL (out of memory of the host, or somebody's kill)"),
        ({"r0": -6}, 0, "rank 0 was killed by SIGABRT (native code gave up, see above)"),
        ({"r0": -40}, 0, "rank 0 was killed by signal 40"),
    ],
)
def test_the_rank_and_the_signal(codes: dict[str, int], rank: int, said: str) -> None:
    found = killed.by_signal(failures(**codes), WITNESS)
    assert found is not None and (found.rank, found.step, found.kind) == (rank, 40, "peer")
    words = killed.in_words(failures(**codes), found)
    assert words.startswith(f"{said}: process {1000 + rank}") and words.endswith(f"on {found.node}, after step 40")


def test_who_has_told_of_a_failure_was_ended_by_torchrun() -> None:
    found = failures(r0=-15, r1=-9, r2=-15)
    for rank in (0, 2):
        made = {"extraInfo": {"outcome": msgspec.to_builtins(WITNESS)}}
        found[rank].error_file_data = {"message": made}
    named = killed.by_signal(found, WITNESS)
    assert named is not None and named.rank == 1
    del found[1]
    assert killed.by_signal(found, WITNESS) is None


def test_exit_codes_are_no_signals() -> None:
    assert killed.by_signal(failures(r0=1, r1=int(signal.SIGKILL)), WITNESS) is None


def test_a_sigterm_beside_a_failure_is_of_torchrun() -> None:
    assert killed.by_signal(failures(r0=1, r1=-15), None) is None
    named = killed.by_signal(failures(r0=-15, r1=-15), None)
    assert named is not None and named.rank == 0


def test_what_the_launcher_knows_replaces_what_a_witness_told(tmp_path: Path) -> None:
    found = killed.by_signal(failures(r1=-9), None)
    assert found is not None
    outcome.replace(tmp_path, found, "a")
    read = outcome.read(tmp_path)
    assert read is not None and (read.rank, read.attempt, read.at > 0) == (1, "a", True)
    assert "killed by SIGKILL" in read.reason and [each.name for each in tmp_path.iterdir()] == [outcome.OUTCOME]
