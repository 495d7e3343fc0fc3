"""Rules of tasks, GPUs and processes: how many copies of what Slurm starts."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.check.commands import Script, Step
from toolkit.check.facts import Facts
from toolkit.check.launchers import Launch
from toolkit.check.rules import ERROR, WARNING, finding
from toolkit.check.tasks import Layout, gpus_per_node, layout, number, options_of, total_gpus, workers
from toolkit.check.text import shown
from toolkit.finding import Finding

ONE_A_NODE = ("torchrun", "accelerate", "deepspeed")
BOUND = ("single", "per_task", "map_gpu", "mask_gpu", "closest", "map", "mask", "verbose,closest")


def task_findings(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    """Tasks times workers, launchers outside of srun, GPUs of a task, CPUs of a task."""
    steps: dict[int, list[Launch]] = {}
    for launch in found:
        if launch.call.step is not None:
            steps.setdefault(launch.call.step.line, []).append(launch)
            yield from _in_a_step(script, launch, launch.call.step, facts)
        elif script.is_batch:
            yield from _outside(script, launch)
    if script.is_batch:
        yield from _pinned_job(script, found, facts)
        yield from _gpus(script, found, facts)
    for launches in steps.values():
        step = launches[0].call.step
        if step is not None:
            yield from _step_options(script, step, launches[0], facts)


def _in_a_step(script: Script, launch: Launch, step: Step, facts: Facts) -> Iterator[Finding]:
    place = layout(script, step, facts)
    count = workers(launch, script, place.gpus_per_node)
    if launch.kind in ONE_A_NODE:
        alone = launch.kind == "deepspeed" and "no_ssh" not in launch.options and (place.nodes or 1) > 1
        if place.per_node not in (None, 1):
            total = f" = {place.per_node * count} processes on a node" if count and place.per_node else ""
            each = f" x {count} workers" if count else ", each with the workers of a node"
            yield finding(
                "tasks-times-workers",
                f"{launch.kind} under srun with {place.per_node} tasks on a node{each}{total}",
                f"--ntasks-per-node=1 with {launch.kind}, or {place.per_node} tasks with python itself",
                line=step.line,
            )
        elif alone:
            yield finding(
                "tasks-times-workers",
                f"deepspeed under srun on {place.nodes} nodes: each copy logs in to all nodes and starts every worker",
                "one task and a hostfile, or deepspeed --no_ssh --node_rank=$SLURM_NODEID in the srun'd shell,"
                " or torchrun",
                line=step.line,
            )
        elif not place.pinned:
            yield from _not_pinned(place, step, launch, facts)
        elif place.per_node is None and place.tasks and place.tasks > 1:
            yield finding(
                "tasks-not-pinned",
                f"{place.tasks} tasks for {launch.kind}, and nothing says that each node has one",
                f"--nodes={place.tasks} --ntasks-per-node=1",
                line=step.line,
                severity=WARNING,
            )
        return
    if not place.pinned:
        yield from _not_pinned(place, step, launch, facts)
    elif place.per_node and place.gpus_per_node and place.per_node != place.gpus_per_node:
        yield finding(
            "tasks-and-gpus",
            f"{place.per_node} tasks and {place.gpus_per_node} GPUs on a node, one process a task",
            f"--ntasks-per-node={place.gpus_per_node}",
            line=step.line,
        )


def _not_pinned(place: Layout, step: Step, launch: Launch, facts: Facts) -> Iterator[Finding]:
    whole_node = place.copies is not None or place.per_node is None
    wanted = 1 if launch.kind in ONE_A_NODE else place.gpus_per_node or facts.usable_per_node
    remedy = f"--ntasks-per-node={wanted or 'N'}: " + (
        "one, as the launcher starts the workers" if launch.kind in ONE_A_NODE else "one task for each GPU"
    )
    if place.copies and place.copies > (place.nodes or 1):
        message = f"srun without a number of tasks starts {place.copies} copies of {_program(launch)}"
    elif whole_node:
        message = (
            f"srun without a number of tasks on a whole node starts floor(CPUs / cpus-per-task) copies of"
            f" {_program(launch)}"
        )
    else:
        message = f"nothing says how many tasks run {_program(launch)}"
    yield finding("tasks-not-pinned", message, remedy, line=step.line, severity=ERROR if whole_node else WARNING)


def _program(launch: Launch) -> str:
    words = launch.program if launch.kind == "python" else (launch.kind, *launch.program)
    return shown(" ".join(words[:2]))[:60]


def bare_findings(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    """A step whose program is no launcher and no Python, on a whole node without a number of tasks."""
    told = {launch.call.step.line for launch in found if launch.call.step is not None}
    for call in script.calls:
        step = call.step
        if step is None or step.line in told or call.name in ("srun", "hostname", "echo", "nvidia-smi", "env"):
            continue
        told.add(step.line)
        place = layout(script, step, facts)
        if not place.pinned and (place.per_node is None or place.copies):
            yield from _not_pinned(place, step, Launch("python", call, {}, call.words), facts)


def _outside(script: Script, launch: Launch) -> Iterator[Finding]:
    nodes = number(script.head.get("nodes") or "1", script)
    remote = launch.kind == "deepspeed" and ("hostfile" in launch.options or "no_ssh" in launch.options)
    if not nodes or nodes < 2 or remote or launch.kind == "python":
        return
    if launch.kind == "deepspeed":
        yield finding(
            "head-node-only",
            f"deepspeed without a hostfile in a job of {nodes} nodes uses the first node's GPUs",
            "write a hostfile from scontrol show hostnames, or srun torchrun",
            line=launch.line,
        )
        return
    yield finding(
        "head-node-only",
        f"{launch.kind} without srun in a job of {nodes} nodes",
        f"srun --ntasks-per-node=1 {launch.kind} ...",
        line=launch.line,
    )


def _pinned_job(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    """--cpus-per-task of a launcher's one task."""
    head = script.head
    under = [launch for launch in found if launch.kind in ONE_A_NODE]
    if not under or "exclusive" in head.options:
        return
    asked = any(name in head.options for name in ("cpus-per-task", "cpus-per-gpu", "mincpus"))
    steps = any("cpus-per-task" in launch.call.step.options for launch in under if launch.call.step is not None)
    place = layout(script, None, facts)
    count = workers(under[0], script, place.gpus_per_node)
    if not asked and not steps and place.per_node == 1 and (count is None or count > 1):
        yield finding(
            "node-cpus",
            f"no --cpus-per-task: the {count or 'many'} workers of a node share one CPU",
            "#SBATCH --cpus-per-task=N, the CPUs of a node",
            line=head.line("ntasks-per-node", "nodes"),
        )


def _gpus(script: Script, found: list[Launch], facts: Facts) -> Iterator[Finding]:
    head = script.head
    given = dict(head.options)
    nodes = number(given.get("nodes") or "1", script) or 1
    total = total_gpus(given)
    if total is not None and not {"gres", "gpus-per-node"} & given.keys():
        counts = {workers(launch, script, None) for launch in found if launch.kind in ONE_A_NODE} - {None, 1}
        wrong = [count for count in counts if count and nodes > 1 and count * nodes != total]
        many = wrong[0] if wrong else total
        yield finding(
            "gpus-of-the-job",
            f"--gpus={head.options['gpus']} is for all {nodes} nodes together"
            + (f", and the launcher starts {many} workers on each" if wrong else ""),
            f"--gpus-per-node={many if wrong else max(total // nodes, 1)}",
            line=head.line("gpus"),
            severity=ERROR if wrong else WARNING,
        )
    if "gpus-per-node" in given or "gres" in given:
        have = gpus_per_node(given, nodes)
        for launch in found:
            count = workers(launch, script, have)
            if launch.kind in ("torchrun", "deepspeed") and have and count and count != have:
                yield finding(
                    "tasks-and-gpus",
                    f"{count} workers of {launch.kind} and {have} GPUs on a node",
                    "let both be the same",
                    line=launch.line,
                    severity=ERROR if count > have else WARNING,
                )


def _step_options(script: Script, step: Step, launch: Launch, facts: Facts) -> Iterator[Finding]:
    given = options_of(script, step)
    place = layout(script, step, facts)
    several = place.tasks is None or place.tasks > 1
    ending = {"kill-on-bad-exit", "no-kill"} & step.options.keys()
    own = any(each.name == "SLURM_KILL_BAD_EXIT" for each in script.assignments)
    if several and not ending and not own:
        yield finding(
            "kill-on-bad-exit", "srun without --kill-on-bad-exit", "srun --kill-on-bad-exit=1", line=step.line
        )
    inherits = any(each.name == "SRUN_CPUS_PER_TASK" for each in script.assignments)
    if "cpus-per-task" in script.head.options and "cpus-per-task" not in step.options and not inherits:
        yield finding(
            "step-cpus",
            "srun without --cpus-per-task",
            'srun --cpus-per-task="$SLURM_CPUS_PER_TASK", or export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK',
            line=step.line,
        )
    piped = launch.call.pipe
    if piped and piped[-1] == "tee" and "pipefail" not in script.shell:
        yield finding("exit-code", "| tee hides the code of srun", "set -o pipefail", line=step.line)
    yield from device_findings(script, given, place, launch, step.line)


def device_findings(
    script: Script, given: dict[str, str], place: Layout, launch: Launch | None, line: int
) -> Iterator[Finding]:
    """--gpus-per-task and --gpu-bind: what each task sees of the node's GPUs."""
    each, bind = number(given.get("gpus-per-task"), script), given.get("gpu-bind", "")
    several = place.per_node is None or place.per_node > 1
    where = script.head.line("gpus-per-task", "gpu-bind")
    where = where if where > 1 else line
    better = place.gpus_per_node or place.per_node or "N"
    if each is not None and launch is not None and launch.kind in ONE_A_NODE:
        count = workers(launch, script, each)
        if count and count > each:
            yield finding(
                "device-index",
                f"--gpus-per-task={each} and {count} workers in the one task of a node",
                f"--gpus-per-node={count}",
                line=where,
            )
    elif each is not None and several:
        local = [a for a in script.assignments if a.name == "LOCAL_RANK" and "SLURM_LOCALID" in a.raw]
        arguments = launch.arguments.get("local_rank", "") if launch is not None else ""
        proved = bool(local) or "SLURM_LOCALID" in arguments
        yield finding(
            "device-index",
            f"--gpus-per-task={each}: each of {place.per_node or 'the'} tasks on a node sees {each} GPU"
            f"{'s' if each > 1 else ''} as 0" + (", and LOCAL_RANK counts to the last" if proved else ""),
            f"--gpus-per-node={better} (or --gres=gpu:{better}) shows all to all; else use device 0 in every task and"
            " expect no peer access",
            line=where,
            severity=ERROR,
        )
    if bind and bind.split(":")[0].split(",")[-1] not in ("none", "no") and (several or launch is not None):
        one = launch is not None and launch.kind in ONE_A_NODE
        yield finding(
            "gpu-bind",
            f"--gpu-bind={bind} hides GPUs of the node from " + ("the launcher" if one else "each task"),
            "leave it out; at the start print world size and each rank's host and GPU uuid, and stop where the world is"
            " not the plan's or a GPU is used twice",
            line=where,
            severity=WARNING,
        )
