"""Hypothesis without deadlines: on a machine that is shared they measure the other programs. Quick starts."""

import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("toolkit", deadline=None)
settings.load_profile("toolkit")


def pytest_configure() -> None:
    """What tests start gets the signals that a terminal's programs get, also of tests in the background.

    A shell has `&` and nohup ignore SIGINT and SIGHUP, and what is ignored stays so in each program started from
    there; what has a handler goes back to the default.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """Programs are forked from a process that has imported torch and the rest: see tests/forked."""
    from tests.forked import python

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python())
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones first: of several processes none is left with a long one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of the faults that were injected on the cluster."""
    reports = [each for outcome in ("passed", "failed") for each in terminalreporter.stats.get(outcome, [])]
    found = [row for each in reports for name, row in each.user_properties if name == "fault"]
    if found:
        from tests.cluster import faults

        terminalreporter.write_line("\n" + faults.table([faults.Row(**row) for row in found]))
