"""Rules of the time limit: who gets the signal, and whether the time until the kill is enough."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.check.commands import Script
from toolkit.check.facts import Facts
from toolkit.check.launchers import Launch
from toolkit.check.rules import WARNING, finding
from toolkit.finding import Finding

USUAL_SECONDS = 60  # of --signal without @
MARGIN = 0.1  # of step and save, in what is recommended
MOST_SECONDS = 65535  # sbatch(1)
SPREAD = 60  # the signal may come a minute early (sbatch(1)), never late
_SIGNAL = re.compile(r"(?:([BR]+):)?([A-Za-z0-9]+)(?:@(\d+))?")
_DAYS = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def signal_findings(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    """--signal of a batch script, and what hears it."""
    if not script.is_batch:
        return
    text = script.head.get("signal")
    if text is None:
        if found:
            lead = recommended(facts) or 120
            how = f"#SBATCH --signal=B:USR1@{lead} and a trap" if _elastic(found) else f"#SBATCH --signal=USR1@{lead}"
            yield finding("no-signal", "no --signal before the time limit", how, line=1)
        return
    line = script.head.lines["signal"]
    read = _SIGNAL.fullmatch(text)
    if read is None:
        yield finding(
            "directive-unknown", f"--signal={text} is not [B:]SIGNAL[@SECONDS]", "--signal=B:USR1@120", line=line
        )
        return
    to_batch, name = "B" in (read[1] or ""), read[2].upper().removeprefix("SIG")
    lead = int(read[3] or USUAL_SECONDS)
    yield from _lead(script, lead, to_batch, name, line, facts)
    if to_batch:
        yield from _batch_shell(script, name, line)
    if _elastic(found) and (not to_batch or _passed_on(script, name)):
        handled = any(
            name
            in launch.options.get("signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT").replace("SIG", "").split(",")
            for launch in found
            if launch.kind == "torchrun"
        )
        if not handled and name not in ("TERM", "INT", "HUP", "QUIT"):
            yield finding(
                "signal-to-steps",
                f"--signal={text}" + (", passed on to" if to_batch else " and") + f" {_elastic(found)}",
                f"--signal=B:{name}@{max(lead, recommended(facts))} with a trap that passes it on (srun"
                f" in the background, wait) or writes a file that ranks look for, and"
                f" --signals-to-handle=...,SIG{name} for torchrun",
                line=line,
            )


def _passed_on(script: Script, name: str) -> bool:
    """Whether the batch shell sends the signal on to srun, and with it to torchrun."""
    texts = [" ".join(call.words) for call in script.calls if call.name in ("kill", "scancel", "trap")]
    return any(re.search(rf"kill\s+(?:-s\s*|-)(?:SIG)?{name}\b|scancel\b.*{name}\b", text) for text in texts)


def recommended(facts: Facts) -> int:
    """Seconds from the signal to the kill: step, save and a margin, up to the next ten; 0 where nothing is known."""
    need = facts.lead_seconds * (1.0 + MARGIN)
    return int(-(-need // 10.0) * 10) if need else 0


def _elastic(found: list[Launch]) -> str:
    return next((launch.kind for launch in found if launch.kind in ("torchrun", "accelerate")), "")


def _lead(script: Script, lead: int, to_batch: bool, name: str, line: int, facts: Facts) -> Iterator[Finding]:
    need = facts.lead_seconds
    prefix = "B:" if to_batch else ""
    if need and lead < need:
        yield finding(
            "signal-lead",
            f"{lead} s from the signal to the kill; a step of {facts.step_seconds:g} s and a save of"
            f" {facts.save_seconds:g} s take {need:g} s",
            f"--signal={prefix}{name}@{recommended(facts)} or more ({need:g} s and a margin)",
            line=line,
        )
    limit = limit_seconds(script.head.get("time") or "")
    if lead > MOST_SECONDS:
        yield finding("signal-lead", f"{lead} s is above sbatch's {MOST_SECONDS}", "give fewer seconds", line=line)
    elif limit and lead >= limit:
        yield finding(
            "signal-lead",
            f"{lead} s before the end of a job of {limit} s: the signal comes at the start",
            "a longer --time, or fewer seconds",
            line=line,
        )


def limit_seconds(text: str) -> int:
    """``minutes``, ``minutes:seconds``, ``hours:minutes:seconds``, ``days-hours[:minutes[:seconds]]``; 0 for none."""
    read = _DAYS.fullmatch(text.strip())
    if not read:
        return 0
    days, parts = int(read[1] or 0), [int(part) for part in read.groups()[1:] if part is not None]
    if read[1] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:  # noqa: PLR2004
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, parts[0], parts[1] if len(parts) > 1 else 0
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _batch_shell(script: Script, name: str, line: int) -> Iterator[Finding]:
    # one without a command ('' or -) hears nothing
    deaf = (("",), ("-",))
    traps = [call for call in script.calls if call.name == "trap" and not call.step and call.words[1:2] not in deaf]
    heard = any(
        name in {word.upper().removeprefix("SIG") for word in trap.words[2:]}
        or (name == "USR1" and "10" in trap.words[2:])
        for trap in traps
    )
    steps = {call.step.line: call.step for call in script.calls if call.step is not None}
    execs = any(call.raw.lstrip().startswith("exec srun") for call in script.calls)
    if not heard and not execs:
        yield finding(
            "signal-unheard",
            f"--signal=B:{name}@... and no trap for {name}",
            f"trap 'kill -{name} $srun_pid' {name}; srun ... & srun_pid=$!; wait",
            line=line,
        )
    elif heard:
        last = [step for step in steps.values() if not step.background]
        if last and len(last) == len(steps):
            yield finding(
                "signal-late",
                f"srun in the foreground and a trap for {name}",
                "srun ... & srun_pid=$!; wait in a loop until it has ended",
                line=last[-1].line,
            )
    for trap in traps:
        if "CONT" in {word.upper().removeprefix("SIG") for word in trap.words[2:]}:
            yield finding(
                "signal-late",
                "a trap for CONT: 1 of 4 signals at the time limit was lost with one",
                "trap no CONT",
                line=trap.line,
                severity=WARNING,
            )
