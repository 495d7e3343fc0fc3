"""Rules of the text and of the #SBATCH lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from toolkit.check.commands import Script
from toolkit.check.facts import Facts
from toolkit.check.nodelist import hostnames
from toolkit.check.options import near
from toolkit.check.rules import ERROR, WARNING, finding
from toolkit.check.tasks import number
from toolkit.check.text import is_known
from toolkit.errors import ToolkitError
from toolkit.finding import Finding

Exists = Callable[[str], bool | None]  # whether a folder or file is there; None where that cannot be seen

_SECRET = re.compile(r"(?:API_?KEY|TOKEN|PASSWORD|SECRET)$")
_TOKEN = re.compile(r"(?:hf_|sk-|ghp_)?[A-Za-z0-9_-]{20,}")
_VARIABLE = re.compile(r"\$\{?\w+|~/|`")
PATHS = ("output", "error", "chdir")


def text_findings(script: Script) -> Iterator[Finding]:
    """Shebang, line ends, continuations, secrets."""
    lines = script.text.split("\n")
    if "\r" in script.text:
        at = next(i for i, line in enumerate(lines, 1) if "\r" in line)
        yield finding("line-ends", "lines end with a carriage return", "dos2unix FILE", line=at)
    first = lines[0].rstrip("\r")
    if script.is_batch and not first.startswith("#!"):
        what = "an invisible byte order mark" if first.startswith("\ufeff") else repr(first[:40])
        yield finding("shebang", f"the first line is {what}, not #!/bin/bash", "begin with #!/bin/bash", line=1)
    elif first.startswith("#!") and script.is_batch and not re.search(r"\b(ba|z|k|da)?sh\b", first):
        yield finding("shebang", f"{first} does not start a shell", "begin with #!/bin/bash", line=1, severity=WARNING)
    yield from _continuations(script, lines)
    for each in script.assignments:
        if _SECRET.search(each.name.upper()) and is_known(each.text) and _TOKEN.fullmatch(each.text):
            yield finding(
                "secret",
                f"{each.name} is written into the script",
                f"keep it in a file that only you read, and export {each.name}=$(cat FILE)",
                line=each.line,
            )


def _continuations(script: Script, lines: list[str]) -> Iterator[Finding]:
    for number_, raw in enumerate(lines, 1):
        line = raw.rstrip("\r")
        if re.search(r"\\[ \t]+$", line) and not line.lstrip().startswith("#"):
            yield finding(
                "continuation", "a blank follows the backslash", "let the backslash end the line", line=number_
            )
        continued = line.endswith("\\") and not line.endswith("\\\\") and not line.lstrip().startswith("#")
        after = lines[number_].strip() if number_ < len(lines) else ""
        if continued and (not after or after.startswith("#")):
            # the next line ends the command: what follows it has lost its beginning
            later = lines[number_ + 1].strip() if number_ + 1 < len(lines) else ""
            if later.startswith("-"):
                what = "a comment" if after else "an empty line"
                yield finding("continuation", f"{what} follows the backslash", "remove that line", line=number_ + 1)
    told = set()
    for call in script.calls:
        if call.words[0].startswith("--") and call.line not in told and call.step is None:
            told.add(call.line)
            yield finding(
                "continuation",
                f"{call.words[0]} stands where a command begins",
                "end the line before with a backslash",
                line=call.line,
            )


def directive_findings(script: Script, facts: Facts, exists: Exists) -> Iterator[Finding]:
    """What sbatch ignores, refuses or takes otherwise."""
    head = script.head
    for line in head.late:
        yield finding("directive-late", "an #SBATCH line behind the first command", "move it to the top", line=line)
    for line in head.almost:
        yield finding("directive-almost", "this looks like a directive", "write #SBATCH --option=value", line=line)
    for line, name in head.strange:
        guess = near(name.lstrip("-"))
        remedy = f"did you mean --{guess}?" if guess else "sbatch --help lists the options"
        yield finding("directive-unknown", f"sbatch has no option {name!r}", remedy, line=line)
    for line, problem in head.unreadable:
        yield finding("directive-unknown", f"the line cannot be read: {problem}", "close the quotes", line=line)
    for line, name, before, now in head.again:
        yield finding("directive-twice", f"--{name} was {before!r} and is {now!r}", "keep one", line=line)
    for name, value in head.options.items():
        if name not in ("export", "comment", "wrap", "container-image") and _VARIABLE.search(value):
            remedy = "write the value; %j, %x and %N are known to --output" if name in PATHS else "write the value"
            yield finding("directive-variable", f"--{name}={value}", remedy, line=head.lines[name])
    yield from _folders(script, exists)
    yield from _requeue(script)
    yield from _memory(script)
    yield from _nodes(script)
    if script.is_batch:
        yield from _export(script)


def _folders(script: Script, exists: Exists) -> Iterator[Finding]:
    for name in ("output", "error"):
        value = script.head.get(name)
        folder = value.rpartition("/")[0] if value else ""
        if not folder or _VARIABLE.search(folder):
            continue
        line = script.head.lines[name]
        if "%" in folder:
            yield finding(
                "output-folder",
                f"--{name}={value}: Slurm makes no folder {folder}",
                f"--{name}=logs/%x-%j.out, and make the folder before sbatch",
                line=line,
            )
            continue
        there = exists(folder)
        if there is False or there is None:
            made = any(call.name == "mkdir" and folder in " ".join(call.words) for call in script.calls)
            late = "; the mkdir in the script comes too late" if made else ""
            yield finding(
                "output-folder",
                f"--{name}={value}: "
                + (f"there is no folder {folder}" if there is False else f"{folder} must be there")
                + late,
                f"mkdir -p {folder} before sbatch",
                line=line,
                severity=ERROR if there is False else WARNING,
            )


def _requeue(script: Script) -> Iterator[Finding]:
    head = script.head
    if not head.count:
        return
    requeues = "requeue" in head.options or any(
        call.name == "scontrol" and "requeue" in call.words for call in script.calls
    )
    if not requeues and "no-requeue" not in head.options:
        yield finding("no-requeue", "nothing says --requeue", "#SBATCH --requeue (or --no-requeue on purpose)", line=1)
    if requeues and head.get("open-mode") != "append":
        yield finding(
            "open-mode",
            "--requeue without --open-mode=append",
            "#SBATCH --open-mode=append",
            line=head.line("requeue"),
        )


def _memory(script: Script) -> Iterator[Finding]:
    given = script.head.options
    if "exclusive" in given and not {"mem", "mem-per-cpu", "mem-per-gpu"} & given.keys():
        line = script.head.line("exclusive")
        yield finding("memory-default", "--exclusive without --mem", "#SBATCH --mem=0: all of each node", line=line)


def _nodes(script: Script) -> Iterator[Finding]:
    value = script.head.get("nodelist")
    if not value:
        return
    line = script.head.lines["nodelist"]
    try:
        hosts = hostnames(value)
    except ToolkitError as error:
        yield finding("node-count", error.problems[0].message, error.problems[0].remedy, line=line)
        return
    nodes = number(script.head.get("nodes"), script)
    if nodes is not None and len(hosts) > nodes:
        yield finding(
            "node-count",
            f"--nodelist names {len(hosts)} hosts, --nodes asks for {nodes}",
            f"--nodes={len(hosts)}",
            line=line,
        )


def _export(script: Script) -> Iterator[Finding]:
    value = script.head.get("export")
    if value is None or value.split(",")[0].upper() not in ("NONE", "NIL"):
        return
    steps = {call.step.line: call.step for call in script.calls if call.step is not None}
    own = any(each.name in ("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV") for each in script.assignments)
    unset = any(call.name == "unset" and "SLURM_EXPORT_ENV" in call.words for call in script.calls)
    for line, step in sorted(steps.items()):
        if not (own or unset or step.options.get("export", "").upper().startswith("ALL")):
            yield finding("export-none", "srun after --export=NONE", "srun --export=ALL ...", line=line)
