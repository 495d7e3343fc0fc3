"""A request to stop is remembered, seen once per step, and does not outlive its start."""

import os
import signal
from pathlib import Path

import pytest

from toolkit.runtime.signals import STOP_FILE, STOPPED, StopRequest, stopped_exit_code


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_is_a_request(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    with StopRequest(tmp_path) as stop:
        assert not stop.agreed()
        os.kill(os.getpid(), number)
        assert stop.agreed() and stop.agreed()
        assert stop.reason == number.name
    assert signal.getsignal(number) is before


def test_the_file_is_a_request_that_only_rank_0_sees(tmp_path: Path) -> None:
    with StopRequest(tmp_path, rank=0) as first, StopRequest(tmp_path, rank=1) as second:
        (tmp_path / STOP_FILE).touch()
        assert first.agreed() and STOP_FILE in first.reason
        assert not second.agreed()


def test_a_request_to_an_earlier_start_is_void(tmp_path: Path) -> None:
    (tmp_path / STOP_FILE).touch()
    with StopRequest(tmp_path) as stop:
        assert not stop.agreed()


def test_torchrun_must_not_take_a_stop_for_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert stopped_exit_code() == STOPPED == os.EX_TEMPFAIL
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    assert stopped_exit_code() == 0
