"""DeepSpeed's hostfile, ``HOST slots=N`` on each line, read as ``launcher/runner.py`` of 0.19.8 does.

The library's own pattern is ``^(\\S+)\\s+slots=(\\d+)``; empty lines and lines that begin with # are skipped.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from toolkit.check.commands import Script
from toolkit.check.facts import Facts
from toolkit.check.launchers import Launch
from toolkit.check.rules import WARNING, finding
from toolkit.check.rules_text import Exists
from toolkit.check.text import is_known, shown, whole
from toolkit.finding import Finding

_LINE = re.compile(r"(\S+)\s+slots=(\d+)\s*")
_BRACKET = re.compile(r"\[[\d,-]+\]")
SUFFIXES = ("hostfile", "hosts", "machinefile")


def is_hostfile(name: str, text: str) -> bool:
    """By its name, or by its lines: most of them a word and ``slots=`` or something like it."""
    base = name.rpartition("/")[2].lower()
    if text.startswith("#!") or "#SBATCH" in text:
        return False
    if any(word in base for word in SUFFIXES):
        return True
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    like = [words for words in lines if len(words) == 2 and re.fullmatch(r"\w+=\d+", words[1])]  # noqa: PLR2004
    return bool(lines) and 2 * len(like) > len(lines)


def slots(text: str) -> dict[str, int]:
    """Slots of each host, of the lines that can be read."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        read = _LINE.fullmatch(line.strip())
        if read and not line.lstrip().startswith("#"):
            found.setdefault(read[1], int(read[2]))
    return found


def hostfile_findings(text: str, facts: Facts) -> Iterator[Finding]:
    """Every line that is not a host with slots, hosts named twice, slots that are not the node's GPUs."""
    first: dict[str, int] = {}
    if text.startswith("\ufeff"):
        yield finding("hostfile-line", "an invisible byte order mark begins the file", "save it as plain UTF-8", line=1)
    for at, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if raw.endswith("\r"):
            yield finding("line-ends", "lines end with a carriage return", "dos2unix FILE", line=at, severity=WARNING)
        words = line.split()
        host = words[0]
        if host in first:
            yield finding(
                "hostfile-line",
                f"{host} is on line {first[host]} already",
                "one line for each host, with all its slots",
                line=at,
            )
        first.setdefault(host, at)
        yield from _host(host, at)
        yield from _slots(words[1:], host, at, facts)
    if not first:
        yield finding("hostfile-line", "no host is in it", "write lines like: n1 slots=8", line=1)
    total = sum(slots(text).values())
    if facts.gpus and total and total != facts.gpus:
        yield finding(
            "hostfile-line",
            f"{total} slots on {len(first)} hosts, not the {facts.gpus} GPUs that are planned",
            f"{facts.gpus} slots in all",
            line=1,
        )


def _host(host: str, at: int) -> Iterator[Finding]:
    if "@" in host:
        yield finding(
            "hostfile-line",
            f"{host} names a user: ranks meet at the host's name, which this is not",
            f"{host.partition('@')[2]}, and the user in ~/.ssh/config",
            line=at,
        )
    elif _BRACKET.search(host):
        yield finding(
            "hostfile-line", f"{host} is a compressed node list", "one host a line: scontrol show hostnames", line=at
        )
    elif re.fullmatch(r"[^:]+:\d+", host):
        yield finding(
            "hostfile-line", f"{host} is MPI's way of writing slots", f"{host.replace(':', ' slots=')}", line=at
        )
    elif host.startswith("slots"):
        yield finding("hostfile-line", "the host's name is missing", "HOST slots=N", line=at)
    elif host in ("localhost", "127.0.0.1"):
        yield finding(
            "hostfile-line",
            f"{host} is another machine on every host",
            "the host's own name",
            line=at,
            severity=WARNING,
        )


def _slots(words: list[str], host: str, at: int, facts: Facts) -> Iterator[Finding]:
    if not words:
        yield finding("hostfile-line", f"{host} has no slots", f"{host} slots={facts.gpus_per_node or 8}", line=at)
        return
    token = words[0]
    name, equals, value = token.partition("=")
    rest = words[1:]
    if not equals and len(words) > 1 and words[1].startswith("="):
        yield finding("hostfile-line", f"blanks around the = of {' '.join(words[:3])!r}", f"{host} slots=8", line=at)
        return
    if name != "slots":
        near = difflib.get_close_matches(name, ["slots"], n=1, cutoff=0.4)
        number_ = value if value.isdigit() else "N"
        hint = f"did you mean slots={number_}?" if near or equals else f"write {host} slots={number_}"
        yield finding("hostfile-line", f"{token!r} is not slots=N", hint, line=at)
    elif not value.isdigit():
        yield finding("hostfile-line", f"{token!r}: slots is no whole number", f"{host} slots=8", line=at)
    elif int(value) == 0:
        yield finding("hostfile-line", f"{host} has 0 slots", "give it slots, or leave the line out", line=at)
    elif facts.usable_per_node and int(value) > facts.usable_per_node:
        yield finding(
            "hostfile-line",
            f"{host} has {value} slots; a node has {facts.usable_per_node} GPUs",
            f"slots={facts.usable_per_node}",
            line=at,
        )
    if name == "slots" and rest and not rest[0].startswith("#"):
        yield finding(
            "hostfile-line",
            f"{rest[0]!r} behind the slots",
            f"{host} {token} and nothing else",
            line=at,
            severity=WARNING,
        )


def launcher_findings(
    script: Script, found: list[Launch], hostfiles: Mapping[str, str], exists: Exists
) -> Iterator[Finding]:
    """The hostfile, the filters and the devices of each deepspeed command."""
    for launch in found:
        if launch.kind != "deepspeed":
            continue
        late = [word for word in launch.program if word.startswith("--hostfile")]
        if late:
            yield finding(
                "hostfile-place",
                f"{late[0]} stands behind the training script",
                "deepspeed --hostfile=FILE train.py ...",
                line=launch.line,
            )
        yield from _file(script, launch, hostfiles, exists)
        yield from _filters(launch, hostfiles)
        visible = [a for a in script.assignments if a.name == "CUDA_VISIBLE_DEVICES" and a.text]
        told = {"include", "exclude", "num_gpus", "num_nodes"} & launch.options.keys()
        if visible and told:
            yield finding(
                "visible-devices",
                f"CUDA_VISIBLE_DEVICES={shown(visible[-1].text)} and --{sorted(told)[0]}",
                "deepspeed --include localhost:0,1",
                line=visible[-1].line,
            )


def _file(script: Script, launch: Launch, hostfiles: Mapping[str, str], exists: Exists) -> Iterator[Finding]:
    path = launch.options.get("hostfile")
    if path is None or not path or not is_known(path):
        return
    base = path.rpartition("/")[2]
    written = any(f"{arrow}{quote}{path}" in script.text for arrow in (">", "> ", "tee ") for quote in ("", '"'))
    there = True if written or base in hostfiles else exists(path)
    guard = any(f"{test} {quote}{path}" in script.text for test in ("-r", "-f", "-s", "-e") for quote in ("", '"'))
    if there is False:
        yield finding(
            "hostfile-missing",
            f"there is no {path}",
            f"write it, and let the script end without it: [ -r {path} ] || exit 2",
            line=launch.line,
        )
    elif not path.startswith("/") and not guard:
        yield finding(
            "hostfile-relative",
            f"--hostfile={path} is a relative path",
            f"an absolute path, and [ -r {path} ] || exit 2 before; compare the world size with the plan",
            line=launch.line,
        )


def _filters(launch: Launch, hostfiles: Mapping[str, str]) -> Iterator[Finding]:
    given = launch.options
    filters = [name for name in ("include", "exclude") if given.get(name)]
    counts = [name for name in ("num_nodes", "num_gpus") if name in given]
    if len(filters) > 1:
        yield finding("include-filter", "--include and --exclude together", "give one of them", line=launch.line)
    if filters and counts:
        yield finding("include-filter", f"--{filters[0]} with --{counts[0]}", "give one of them", line=launch.line)
    path = given.get("hostfile", "")
    known = slots(hostfiles.get(path.rpartition("/")[2], "")) if path else {}
    if not known:
        return
    for name in filters:
        for part in given[name].split("@"):
            host, colon, devices = part.partition(":")
            if host not in known:
                yield finding(
                    "include-filter",
                    f"--{name} names {host}, which {path} does not have",
                    f"hosts: {', '.join(list(known)[:8])}",
                    line=launch.line,
                )
                continue
            wrong = [d for d in devices.split(",") if colon and d.isdigit() and int(d) >= known[host]]
            if wrong:
                yield finding(
                    "include-filter",
                    f"--{name} names slot {wrong[0]} of {host}, which has {known[host]}",
                    f"slots 0 to {known[host] - 1}",
                    line=launch.line,
                )
    nodes = whole(given.get("num_nodes", ""))
    if nodes and nodes > len(known):
        yield finding(
            "include-filter", f"--num_nodes={nodes} and {len(known)} hosts", f"at most {len(known)}", line=launch.line
        )
