"""Which process of this machine a signal has killed, of what torchrun knows.

It cannot tell itself, and its peers see only that a connection is gone.
"""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolkit.runtime import outcome
from toolkit.runtime.outcome import Outcome

if TYPE_CHECKING:
    Failures = Mapping[int, Any]  # by rank, torch.distributed.elastic's ProcessFailure (2.13): exitcode and pid

WHOSE: dict[int, str] = {
    signal.SIGKILL: " (out of memory of the host, or somebody's kill)",
    signal.SIGTERM: " (somebody's kill)",
    signal.SIGSEGV: " (a fault of native code, or of memory)",
    signal.SIGBUS: " (/dev/shm or a disk is full, or a fault of memory)",
    signal.SIGABRT: " (native code gave up, see above)",
}


def by_signal(failures: Failures, found: Outcome | None) -> Outcome | None:
    """What became of the run, where a signal killed a rank of this machine; None where none did.

    A rank that has told of a failure itself was ended by torchrun, which ends all once one is gone. SIGABRT counts
    where there is no other: libraries abort processes that merely have lost their peer.
    """
    told = {rank for rank, each in failures.items() if outcome.told_to_torchrun(each.error_file_data) is not None}
    rest = {rank: each.exitcode for rank, each in failures.items() if rank not in told}
    others_failed = any(code > 0 for code in rest.values())  # then a SIGTERM is torchrun's
    codes = {rank: code for rank, code in rest.items() if code < 0 and not (code == -signal.SIGTERM and others_failed)}
    others = [rank for rank in codes if codes[rank] != -signal.SIGABRT] or list(codes)
    if not others:
        return None
    rank = min(others, key=lambda each: (codes[each] != -signal.SIGKILL, each))
    step = found.step if found is not None else 0
    reason = f"killed by {_name(-codes[rank])}"
    return Outcome(state="failed", kind="peer", step=step, rank=rank, node=node(), reason=reason)


def in_words(failures: Failures, named: Outcome) -> str:
    """Which ranks of this machine the signal has killed, and when."""
    code = failures[named.rank].exitcode
    mine = sorted(rank for rank, each in failures.items() if each.exitcode == code)
    which = ", ".join(f"process {failures[rank].pid}" for rank in mine)
    ranks = f"rank {mine[0]} was" if len(mine) == 1 else f"ranks {', '.join(map(str, mine))} were"
    after = f", after step {named.step}" if named.step else ""
    return f"{ranks} {named.reason}: {which} on {named.node}{after}"


def _name(number: int) -> str:
    """A signal and what it mostly means."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # of real time
        name = f"signal {number}"
    return name + WHOSE.get(number, "")


def node() -> str:
    """As the ranks name this machine."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()
