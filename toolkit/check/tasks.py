"""How many tasks a step has on each node, and how many GPUs and processes that makes: from options, as Slurm counts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolkit.check.commands import Script, Step
from toolkit.check.facts import Facts
from toolkit.check.launchers import Launch
from toolkit.check.text import only_variable, whole

_GPUS = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?(?:\(.*\))?")
OF_A_JOB = {"SLURM_NNODES": "nodes", "SLURM_JOB_NUM_NODES": "nodes"}


@dataclass(frozen=True)
class Layout:
    """Of one step, or of the batch job; None is unknown, and not pinned is what no option says."""

    nodes: int | None
    tasks: int | None  # in all
    per_node: int | None
    pinned: bool  # whether an option says how many tasks there are
    gpus_per_node: int | None
    copies: int | None = None  # tasks that Slurm starts where nothing says how many


def gpus_per_node(given: dict[str, str], nodes: int | None) -> int | None:
    """GPUs that a job has on each of its nodes, by whichever option asks for them."""
    for name in ("gpus-per-node", "gres"):
        if name in given:
            for part in given[name].split(","):
                word = part if name == "gres" else f"gpu:{part}"
                found = _GPUS.fullmatch(word.removeprefix("gres:"))
                if found:
                    return int(found[1] or 1)
    for name, tasks in (("gpus-per-task", given.get("ntasks-per-node")),):
        each = _count(given.get(name, ""))
        if each and tasks and whole(tasks):
            return each * int(tasks)
    total = _count(given.get("gpus", ""))
    return total // nodes if total and nodes and total % nodes == 0 else None


def total_gpus(given: dict[str, str]) -> int | None:
    """The value of --gpus, which is of the whole job."""
    return _count(given.get("gpus", ""))


def _count(text: str) -> int | None:
    return whole(text.rpartition(":")[2])


def options_of(script: Script, step: Step | None) -> dict[str, str]:
    """Directives, and what the step says instead."""
    given = dict(script.head.options)
    if step is not None:
        own = dict(step.options.items())
        if "ntasks" in own:
            given.pop("ntasks-per-node", None) if "ntasks-per-node" not in own else None
        given |= own
    return given


def number(text: str | None, script: Script) -> int | None:
    """A number, or what Slurm will put into the variable that stands there."""
    if text is None:
        return None
    found = whole(text.partition("-")[0]) if text[:1].isdigit() else None
    if found is not None:
        return found
    name = only_variable(text)
    if name in OF_A_JOB:
        return number(script.head.get("nodes") or "1", script)
    if name in ("SLURM_NTASKS", "SLURM_NPROCS"):
        return layout(script, None, Facts()).tasks
    if name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        return gpus_per_node(dict(script.head.options), number(script.head.get("nodes"), script))
    if name == "SLURM_NTASKS_PER_NODE":
        return number(script.head.get("ntasks-per-node"), script)
    return None


def layout(script: Script, step: Step | None, facts: Facts) -> Layout:
    """Tasks by Slurm's rules: --ntasks, else --ntasks-per-node x nodes, else one a node.

    A step of a whole node that names CPUs of a task and no number of tasks gets as many tasks as fit:
    ``floor(CPUs of a node / cpus-per-task)``. Source: TUM-DAML/seml #177; sbatch(1).
    """
    given = options_of(script, step)
    nodes = number(given.get("nodes"), script) if "nodes" in given else (None if "ntasks" in given else 1)
    gpus = gpus_per_node(given, nodes)
    tasks, each = number(given.get("ntasks"), script), number(given.get("ntasks-per-node"), script)
    if "ntasks" in given:
        if nodes is None and tasks == 1:
            nodes = 1
        # --ntasks-per-node is then the most of a node
        per_node = each if each and nodes and tasks == each * nodes else None
        if per_node is None and tasks and nodes and tasks % nodes == 0:
            per_node = tasks // nodes
        return Layout(nodes, tasks, per_node, True, gpus)
    if "ntasks-per-node" in given:
        return Layout(nodes, each * nodes if each and nodes else None, each, True, gpus)
    if "ntasks-per-gpu" in given and gpus and nodes:
        each = (number(given["ntasks-per-gpu"], script) or 1) * gpus
        return Layout(nodes, each * nodes, each, True, gpus)
    cores = number(given.get("cpus-per-task"), script)
    if step is not None and cores and "exclusive" in script.head.options:
        each = facts.node_cpus // cores if facts.node_cpus else None
        return Layout(nodes, each * nodes if each and nodes else None, each, False, gpus, each and each * (nodes or 1))
    return Layout(nodes, nodes, 1, False, gpus)


def workers(launch: Launch, script: Script, gpus: int | None) -> int | None:
    """Processes that one copy of the launcher starts on its node."""
    if launch.kind == "torchrun":
        text = launch.options.get("nproc_per_node", "1")
        return gpus if text in ("gpu", "auto") else number(text, script)
    if launch.kind == "deepspeed":
        return number(launch.options["num_gpus"], script) if "num_gpus" in launch.options else gpus
    if launch.kind == "accelerate":
        count, machines = number(launch.options.get("num_processes"), script), launch.options.get("num_machines", "1")
        nodes = number(machines, script)
        return count // nodes if count and nodes and count % nodes == 0 else None
    return 1
