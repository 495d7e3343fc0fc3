"""Trouble and Verdict: what the checks found, and what follows for the job.

One trouble names the nodes that it was found on. A trouble of one node among several makes that node bad: another
one can take its place. What all nodes have is no node's fault (a full file system, a version that the plan was not
made with, a path that is wrong): the job must stop and tell, since it would be the same on any other nodes. Broken GPUs
are a node's own fault however many nodes have them.
"""

from __future__ import annotations

from collections import Counter

import msgspec

OK, EVERYWHERE, INPUT, BAD_NODE = 0, 1, 2, 76  # exit codes; 76 is EX_PROTOCOL of sysexits.h, "remote error"
OF_A_NODE = ("gpus", "reach")  # checks whose troubles are a node's own, also where all nodes have them


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """``severity`` is error (the job must not start like this) or warning (it may, and should know)."""

    check: str  # versions | disk | mount | shared | storage | clock | reach | name | gpus | collective
    nodes: tuple[str, ...]  # empty: of no node in particular, of the job
    message: str
    remedy: str = ""
    severity: str = "error"
    is_input: bool = False  # where all nodes have it, it is what was asked for that is wrong

    def __str__(self) -> str:
        where = f"{', '.join(self.nodes)}: " if self.nodes else ""
        return f"{where}{self.message}" + (f"\n  {self.remedy}" if self.remedy else "")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result, as ``preflight.json`` has it."""

    schema: int = 1
    run_id: str
    exit_code: int
    bad_nodes: tuple[str, ...]
    nodes: tuple[str, ...]
    troubles: tuple[Trouble, ...]
    measured: dict[str, object] = {}  # by check
    skipped: tuple[str, ...] = ()  # checks that were not made, each with why
    assumed: tuple[str, ...] = ()  # expectations that nobody measured
    seconds: float = 0.0


def judge(troubles: list[Trouble], nodes: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """The exit code and the bad nodes; of what all nodes have, only wrong input gives code 2."""
    bad: dict[str, None] = {}
    everywhere: list[Trouble] = []
    by_check: dict[str, set[str]] = {}
    for each in troubles:
        if each.severity == "error":
            by_check.setdefault(each.check, set()).update(each.nodes)
            everywhere += [] if each.nodes else [each]
    for each in troubles:
        if each.severity != "error" or not each.nodes:
            continue
        if len(by_check[each.check]) == len(nodes) and each.check not in OF_A_NODE:
            everywhere.append(each)
        else:
            bad |= dict.fromkeys(each.nodes)
    if everywhere:
        code = INPUT if all(each.is_input for each in everywhere) else EVERYWHERE
        return code, tuple(name for name in nodes if name in bad)
    return (BAD_NODE if bad else OK), tuple(name for name in nodes if name in bad)


def odd_ones_out(
    values: dict[str, str], first: str, earlier: dict[str, str] | None = None
) -> tuple[str, dict[str, str]]:
    """The value of most nodes, and the nodes with another one.

    Where there is a tie, what most nodes of ``earlier`` starts had is right, or else what ``first`` has. Without them a
    first node that is the odd one would turn away all others, one after the other.
    """
    counts = Counter(values.values())
    most = [value for value, count in counts.items() if count == max(counts.values())]
    before = Counter(value for node, value in (earlier or {}).items() if node not in values and value in most)
    if before:
        most = [value for value in most if before[value] == max(before.values())]
    usual = values[first] if values.get(first) in most else most[0]
    return usual, {node: value for node, value in values.items() if value != usual}
