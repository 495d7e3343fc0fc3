"""All rules over all files: pure, from texts and facts to findings in the order of the files' lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from toolkit.check import hostfile
from toolkit.check.commands import Script
from toolkit.check.facts import Facts
from toolkit.check.launchers import launches
from toolkit.check.rules import finding
from toolkit.check.rules_environment import environment_findings, step_findings
from toolkit.check.rules_meeting import meeting_findings
from toolkit.check.rules_ranks import rank_findings
from toolkit.check.rules_signals import signal_findings
from toolkit.check.rules_sizes import size_findings
from toolkit.check.rules_tasks import bare_findings, device_findings, task_findings
from toolkit.check.rules_text import Exists, directive_findings, text_findings
from toolkit.check.script import read
from toolkit.check.tasks import layout, workers
from toolkit.finding import Finding

Syntax = Callable[[str], list[tuple[int, str]]]  # lines that a shell cannot read, and why
SEVERITIES = ("error", "warning", "info")


def _nobody_knows(_: str) -> None:
    return None


def _nobody_asks(_: str) -> list[tuple[int, str]]:
    return []


def check(
    files: Mapping[str, str],
    facts: Facts | None = None,
    exists: Exists = _nobody_knows,
    syntax: Syntax = _nobody_asks,
) -> list[Finding]:
    """Findings of launch scripts and hostfiles, texts by their path.

    ``exists`` tells whether a path that a script names is there, ``syntax`` what a shell cannot read in a text. A
    script that another of the files starts is read in its place, too: what srun starts runs on every node.
    """
    facts = facts or Facts()
    hostfiles = {name.rpartition("/")[2]: text for name, text in files.items() if hostfile.is_hostfile(name, text)}
    scripts = {
        name.rpartition("/")[2]: text for name, text in files.items() if name.rpartition("/")[2] not in hostfiles
    }
    found: list[Finding] = []
    for name, text in files.items():
        base = name.rpartition("/")[2]
        if base in hostfiles:
            own = list(hostfile.hostfile_findings(text, facts))
        else:
            others = {other: body for other, body in scripts.items() if other != base}
            own = check_script(read(base, text, others), facts, exists, hostfiles)
            own += [finding("syntax", problem, "bash -n FILE", line=line) for line, problem in syntax(text)]
        found += sorted({msgspec.structs.replace(each, file=name) for each in own}, key=_order)
    return found


def steps(files: Mapping[str, str], facts: Facts) -> list[dict[str, object]]:
    """What each launch comes to: tasks of its step, workers of each, processes of a node."""
    scripts = {name: text for name, text in files.items() if not hostfile.is_hostfile(name, text)}
    short = {name.rpartition("/")[2]: text for name, text in scripts.items()}
    found: list[dict[str, object]] = []
    for name, text in scripts.items():
        base = name.rpartition("/")[2]
        script = read(base, text, {other: body for other, body in short.items() if other != base})
        for call in script.calls:
            if call.name != "srun":
                continue
            inside = [launch for launch in launches(script) if launch.call.step and launch.call.step.line == call.line]
            step = next((c.step for c in script.calls if c.step is not None and c.step.line == call.line), None)
            place = layout(script, step, facts)
            each = workers(inside[0], script, place.gpus_per_node) if inside else 1
            per_node = place.per_node
            found.append(
                {
                    "file": name,
                    "line": call.line,
                    "launcher": inside[0].kind if inside else "",
                    "nodes": place.nodes,
                    "tasks": place.tasks,
                    "tasks_per_node": per_node,
                    "workers_per_task": each,
                    "processes_per_node": per_node * each if per_node and each else None,
                }
            )
    return found


def check_script(script: Script, facts: Facts, exists: Exists, hostfiles: Mapping[str, str]) -> list[Finding]:
    """Findings of one script."""
    launched = launches(script)
    found = [*text_findings(script), *directive_findings(script, facts, exists)]
    found += task_findings(script, launched, facts)
    found += bare_findings(script, launched, facts)
    if script.is_batch and not any(launch.call.step is not None for launch in launched):
        head = dict(script.head.options)
        place = layout(script, None, facts)
        launch = launched[0] if launched else None
        found += device_findings(script, head, place, launch, script.head.line("gpus-per-task", "gpu-bind"))
    found += rank_findings(script, launched, facts)
    found += meeting_findings(script, launched, facts)
    found += [*environment_findings(script), *step_findings(script)]
    found += signal_findings(script, launched, facts)
    found += size_findings(script, launched, facts)
    found += hostfile.launcher_findings(script, launched, hostfiles, exists)
    return found


def _order(each: Finding) -> tuple[int, int, str, str]:
    line = int(each.where.rpartition(" ")[2] or 0) if each.where else 0
    return line, SEVERITIES.index(each.severity), each.code, each.message
