"""Rules of ranks and variables: who expands them, whether Slurm sets them, what they count."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.check import slurm_names as names
from toolkit.check.commands import Script
from toolkit.check.facts import Facts
from toolkit.check.launchers import Launch
from toolkit.check.rules import ERROR, WARNING, finding
from toolkit.check.tasks import gpus_per_node, layout, number
from toolkit.check.text import BATCH, only_variable, shown, variables, whole
from toolkit.finding import Finding

RANK_OPTIONS = ("node_rank", "machine_rank", "group_rank")
OF_A_NODE = {"NODE_RANK", "MACHINE_RANK", "GROUP_RANK", "SLURM_NODE_RANK", "NODEID", "THIS_NODE", "NODE_ID"}
OF_A_PROCESS = {"RANK", "LOCAL_RANK", "PROC_ID", "GLOBAL_RANK", "PROCID"}
_USED = re.compile(r"(?<![\w])SLURMD?_[A-Z][A-Z0-9_]*")
_UNSET = re.compile(r"^[ \t]*unset((?:[ \t]+[\w-]+|[ \t]*\\\n)+)", re.MULTILINE)
_GUARDED = re.compile(r"\$\{(\w+)(?::?[-=?+])")
COUNTS = {"SLURM_NTASKS": "tasks", "SLURM_NPROCS": "tasks", "SLURM_JOB_NUM_NODES": "nodes", "SLURM_NNODES": "nodes"}


def rank_findings(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    """Node ranks, world sizes, and Slurm's variables."""
    nodes = number(script.head.get("nodes") or "1", script)
    several = nodes is None or nodes > 1
    for launch in found:
        for option in RANK_OPTIONS:
            if option in launch.options:
                yield from _node_rank(script, launch, option, facts, several)
        yield from _sizes(script, launch, facts)
        yield from _early_arguments(launch)
        yield from _order(script, launch, facts)
    yield from _early_values(script, found, several)
    yield from _counted(script, found, facts)
    yield from _slurm_variables(script)


def _order(script: Script, launch: Launch, facts: Facts) -> Iterator[Finding]:
    step = launch.call.step
    asked = (step.options if step is not None else {}).get("distribution") or script.head.get("distribution") or ""
    place = layout(script, step, facts)
    if step is None or place.nodes == 1 or place.per_node == 1 or not asked.startswith(("cyclic", "plane", "arb")):
        return
    message = f"--distribution={shown(asked)}: ranks go round the nodes"
    yield finding("rank-order", message, "srun --distribution=block", line=step.line)


def _node_rank(script: Script, launch: Launch, option: str, facts: Facts, several: bool) -> Iterator[Finding]:
    text, step = launch.options[option], launch.call.step
    place = layout(script, step, facts)
    early = [name for name in variables(text, BATCH) if name in names.OF_A_TASK]
    if early and (step is not None or launch.call.place != BATCH) and several:
        yield finding(
            "expanded-early",
            f"--{option}={shown(text)} is expanded in the batch shell",
            f"srun bash -c '{launch.kind} --{option}=\"$SLURM_NODEID\" ...' (single quotes), or \\$SLURM_NODEID",
            line=launch.line,
        )
    if "SLURM_LOCALID" in variables(text):
        yield finding(
            "node-rank-task", f"--{option}={shown(text)} is a rank inside its node", "$SLURM_NODEID", line=launch.line
        )
    if {"SLURM_PROCID"} & set(variables(text)):
        many = place.per_node not in (None, 1)
        told = f" with {place.per_node} tasks on a node" if many else ""
        yield finding(
            "node-rank-task",
            f"--{option}={shown(text)}{told}",
            f"--{option}=$SLURM_NODEID",
            line=launch.line,
            severity=ERROR if many else WARNING,
        )
    if whole(text) is not None and several and step is not None:
        yield finding(
            "expanded-early",
            f"--{option}={text} on every node of srun",
            f"--{option}=$SLURM_NODEID in the srun'd shell",
            line=launch.line,
        )


def _early_arguments(launch: Launch) -> Iterator[Finding]:
    """Ranks handed to a program by the batch shell."""
    if launch.call.step is None:
        return
    for name in ("local_rank", "rank", "node_rank", "global_rank"):
        text = launch.arguments.get(name, "")
        if set(variables(text, BATCH)) & names.OF_A_TASK:
            yield finding(
                "expanded-early",
                f"--{name}={shown(text)} is expanded in the batch shell",
                "srun bash -c '... $SLURM_PROCID ...' in single quotes, or let the program read it",
                line=launch.line,
            )


def _early_values(script: Script, found: list[Launch], several: bool) -> Iterator[Finding]:
    """``export RANK=$SLURM_PROCID`` in the batch script."""
    for each in script.assignments:
        if each.name not in OF_A_NODE | OF_A_PROCESS:
            continue
        used = set(variables(each.text)) & names.OF_A_TASK
        if used and each.place == BATCH and each.step is None and script.is_batch:
            yield finding(
                "expanded-early",
                f"{each.name}={shown(each.text)} is set in the batch shell, once for all",
                "set it in the shell that srun starts: srun bash -c '...' in single quotes",
                line=each.line,
            )
        many = any((layout(script, launch.call.step, Facts()).per_node or 1) > 1 for launch in found)
        if each.name in OF_A_NODE and "SLURM_PROCID" in used and (each.place != BATCH or not script.is_batch):
            yield finding(
                "node-rank-task",
                f"{each.name}={shown(each.text)}",
                "$SLURM_NODEID",
                line=each.line,
                severity=ERROR if many else WARNING,
            )


def _sizes(script: Script, launch: Launch, facts: Facts) -> Iterator[Finding]:
    """Counts of nodes, workers and processes by the wrong variable."""
    place = layout(script, launch.call.step, facts)
    gpus = place.gpus_per_node or gpus_per_node(dict(script.head.options), place.nodes)
    for option in ("nproc_per_node", "num_gpus"):
        name = only_variable(launch.options.get(option, ""))
        if name in COUNTS:
            yield finding(
                "world-size",
                f"--{option}=${name} counts {COUNTS[name]} of the job, not GPUs of a node",
                f"--{option}=$SLURM_GPUS_ON_NODE",
                line=launch.line,
            )
    for option in ("nnodes", "num_machines", "num_nodes"):
        name = only_variable(launch.options.get(option, ""))
        if COUNTS.get(name) == "tasks" and place.per_node not in (None, 1):
            yield finding(
                "world-size",
                f"--{option}=${name} counts tasks, {place.per_node} on each node",
                f"--{option}=$SLURM_JOB_NUM_NODES",
                line=launch.line,
            )
    machines = number(launch.options.get("num_machines"), script)
    count = number(launch.options.get("num_processes"), script)
    if launch.kind == "accelerate" and machines and machines > 1 and count:
        name = only_variable(launch.options["num_processes"])
        each = gpus or facts.usable_per_node
        if count % machines or (each and count == each):
            right = f"{machines} x {each} = {machines * each}" if each else f"{machines} x GPUs of a node"
            yield finding(
                "world-size",
                f"--num_processes={shown(launch.options['num_processes'])} is the total of all"
                f" {machines} machines, not of one",
                f"--num_processes: {right}",
                line=launch.line,
            )
        elif COUNTS.get(name) == "tasks" and place.per_node == 1:
            yield finding(
                "world-size",
                f"--num_processes=${name} counts one task a node",
                "nodes x GPUs of a node",
                line=launch.line,
            )


def _counted(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    launchers = [launch for launch in found if launch.kind != "python"]
    for each in script.assignments:
        name = only_variable(each.text)
        if each.name in ("LOCAL_WORLD_SIZE", "NPROC_PER_NODE", "GPUS_PER_NODE") and name in COUNTS:
            yield finding(
                "world-size",
                f"{each.name}=${name} counts {COUNTS[name]} of the job",
                "$SLURM_GPUS_ON_NODE",
                line=each.line,
            )
        if each.name in ("WORLD_SIZE", "NUM_PROCESSES", "NPROCS") and name in COUNTS:
            step = launchers[0].call.step if launchers else None
            if COUNTS[name] == "nodes" or (launchers and layout(script, step, facts).per_node in (None, 1)):
                what = "nodes" if COUNTS[name] == "nodes" else "tasks, and the launcher's one task a node is not a rank"
                yield finding(
                    "world-size",
                    f"{each.name}=${name} counts {what}",
                    "leave it to the launcher, or SLURM_JOB_NUM_NODES x SLURM_GPUS_ON_NODE",
                    line=each.line,
                )


def _slurm_variables(script: Script) -> Iterator[Finding]:
    own = {each.name for each in script.assignments}
    own |= {word for words in _UNSET.findall(script.text) for word in words.split()}  # which reads nothing
    given = set(script.head.options)
    told: set[str] = set()
    for number_, line in enumerate(script.text.split("\n"), 1):
        if line.lstrip().startswith("#"):
            continue
        guarded = set(_GUARDED.findall(line))
        for name in _USED.findall(line):
            if name in own or name in told:
                continue
            if not names.exists(name):
                told.add(name)
                guess = names.meant(name)
                yield finding(
                    "slurm-variable",
                    f"Slurm sets no {name}",
                    f"did you mean {guess}?" if guess else "printenv in a job shows what there is",
                    line=number_,
                    severity=ERROR if guess else WARNING,
                )
                continue
            needed = names.ONLY_WITH.get(name)
            if needed and script.is_batch and not given & set(needed) and name not in guarded:
                inside = any(
                    option in call.step.options and name not in variables(call.step.options[option])
                    for call in script.calls
                    if call.step is not None
                    for option in needed
                )
                if inside or re.search(rf"(?:-z|-n|-v)\s+\"?\$?\{{?{name}", line):
                    continue
                told.add(name)
                instead = names.INSTEAD.get(name)
                yield finding(
                    "variable-not-set",
                    f"{name} without --{needed[0]}",
                    f"use {instead}, or add --{needed[0]}"
                    if instead
                    else f"add --{needed[0]}, or give a default: ${{{name}:-1}}",
                    line=number_,
                )
            if name == "SLURM_RESTART_COUNT" and name not in guarded and re.search(r"\$\{?SLURM_RESTART_COUNT", line):
                told.add(name)
                yield finding(
                    "restart-count",
                    "SLURM_RESTART_COUNT without a default",
                    "${SLURM_RESTART_COUNT:-0}",
                    line=number_,
                    severity=ERROR if "nounset" in script.shell else WARNING,
                )
