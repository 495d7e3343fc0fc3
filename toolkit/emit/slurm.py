"""``train.sbatch``: a job that survives its time limit, preemption and the loss of a node."""

from __future__ import annotations

import math

from toolkit.emit import environment, script, shell
from toolkit.errors import Problems, ToolkitError
from toolkit.plan import Plan
from toolkit.units import MIB

BODIES = ("batch", "common", "slurm", "node", "verdict", "lease", "attempts")
FOR_JOBS = 0.9  # of a node's memory


def batch_script(plan: Plan, files: script.Files, launcher: str = "torchrun") -> str:
    """The whole script: ``#SBATCH`` lines, quoted assignments, static bodies.

    ``launcher`` torchrun: one task per node, torchrun starts the rest, the warning before the end goes to the
    script (``B:``), which passes it on. srun: one task per process, ranks from ``SLURM_PROCID`` and
    ``SLURM_LOCALID``, the warning goes to the processes themselves.

    srun runs in the background so that the trap on USR1 runs. How an attempt ended is read from what the
    ranks wrote (:mod:`toolkit.runtime.outcome`): a request to stop requeues the job, a killed process starts
    again in the allocation, a broken or silent node is excluded, an error of the program stops. Directory
    names in ``files`` are read from the directory that sbatch was called in. Arguments after the script's name
    go to the program.

    ``setup_command`` of the site is the site's own shell text and is evaluated as it stands; every other
    value is quoted, or refused with ToolkitError where a ``#SBATCH`` line cannot carry it.
    """
    if launcher not in script.LAUNCHERS:
        raise ToolkitError(f"launcher {launcher!r} is not one of {', '.join(script.LAUNCHERS)}", remedy="correct it")
    lines = ["#!/bin/bash", *directives(plan, launcher), *script.title(plan), *script.assignments(plan, files)]
    if note := script.stop_note(plan):
        lines.append(shell.comment(f"Note: {note}."))
    lines += [shell.assignment("launcher", launcher), *_container(plan)]
    lines += script.location(files.directory or ".", files.output_directory)
    return "\n".join(lines) + "\n\n" + "\n".join(shell.body(name) for name in BODIES)


def directives(plan: Plan, launcher: str = "torchrun") -> list[str]:
    """``#SBATCH`` lines, sorted. ``--output`` stays in the submit directory, which always exists."""
    cluster, site = plan.cluster, plan.cluster.site
    tasks = 1 if launcher == "torchrun" else cluster.gpus_per_node
    options: dict[str, str | bool] = {
        "account": site.account,
        "constraint": site.constraint,
        "cpus-per-task": _cpus(plan, tasks),
        "exclusive": site.exclusive,
        "job-name": shell.label(plan.name),
        "mem": _memory(plan),
        "nodes": str(cluster.nodes),
        "ntasks-per-node": str(tasks),
        "open-mode": "append",
        "output": "%x-%j.out",
        "partition": site.partition,
        "qos": site.qos,
        "requeue": True,
        "reservation": site.reservation,
        "signal": f"{'B:' if launcher == 'torchrun' else ''}USR1@{script.stop_seconds(plan)}",
        "time": site.time_limit,
    }
    if site.gpu_request in ("gpus-per-node", "gres"):
        kind = f"{site.gpu_type}:" if site.gpu_type else ""
        count = f"{kind}{cluster.gpus_per_node}"
        options[site.gpu_request] = f"gpu:{count}" if site.gpu_request == "gres" else count
    with Problems() as problems:
        _refuse(problems, plan)
    given = {name: value for name, value in sorted(options.items()) if value}
    return [f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={value}" for name, value in given.items()]


def _cpus(plan: Plan, tasks: int) -> str:
    """Of each task: what the site says; a job that shares its nodes asks for the cores, an exclusive one has all."""
    cluster, site = plan.cluster, plan.cluster.site
    cores = site.cpus_per_node or (0 if site.exclusive else cluster.host_cores)
    return str(max(1, cores // max(1, tasks))) if cores else ""


def _memory(plan: Plan) -> str:
    """Of each node: what the site says ("none": no such line).

    Otherwise all of it (``0``) for a job that has its nodes, or all of their cores, to itself: without the line Slurm
    gives ``DefMemPerCPU`` or ``DefMemPerNode``, whatever ``--exclusive`` says, and kills what takes more. Tried on
    Slurm 22.05: 0 gives all memory where memory is a resource (``CR_Core_Memory``), and changes nothing where it is
    none. A job on a part of the cores asks for the same part of the memory, less 10 % for the system (assumed), which
    ``RealMemory`` leaves out. Jobs on processors take what Slurm gives.
    """
    cluster, site = plan.cluster, plan.cluster.site
    if site.memory_per_node:
        return "" if site.memory_per_node == "none" else site.memory_per_node
    if site.exclusive:
        return "0"
    if cluster.accelerator.is_cpu:
        return ""
    share = (
        min(1.0, 1.0 * site.cpus_per_node / cluster.host_cores) if site.cpus_per_node and cluster.host_cores else 1.0
    )
    if share == 1.0 and not site.max_gpus_per_node:
        return "0"
    return f"{math.floor(FOR_JOBS * share * cluster.host_memory_bytes / MIB)}M" if cluster.host_memory_bytes else ""


def _container(plan: Plan) -> list[str]:
    """Variables for srun's container options, or for apptainer around the command."""
    site, vendor = plan.cluster.site, plan.cluster.accelerator.vendor
    with Problems() as problems:
        _refuse_container(problems, plan)
    devices = {"NVIDIA": ("--nv",), "AMD": ("--rocm",)}.get(vendor, ()) if script.gpus_per_node(plan) else ()
    variables: dict[str, str | tuple[str, ...]] = {
        "container_gpus": devices,
        "container_image": site.container_image,
        "container_mounts": site.container_mounts,
        "container_runtime": site.container_runtime,
        # an image's own value of a variable wins over the job's unless pyxis is told the name
        "exported": tuple(environment.variables(plan)),
    }
    return [shell.assignment(name, value) for name, value in variables.items()]


def _refuse_container(problems: Problems, plan: Plan) -> None:
    site = plan.cluster.site
    if site.container_runtime not in ("none", "pyxis", "apptainer"):
        problems.add(f"container_runtime {site.container_runtime!r} is not known", "use none, pyxis or apptainer")
    if (site.container_runtime == "none") != (not site.container_image):
        problems.add(
            f"container_runtime {site.container_runtime!r} with container_image {site.container_image!r}",
            "give both, or neither",
        )
    if site.container_image:
        shell.refuse_lines(problems, "container_image", site.container_image)
    for mount in site.container_mounts:
        shell.refuse_lines(problems, "container mount", mount)
        if "," in mount:
            problems.add(f"container mount {mount!r} has a comma, which separates mounts", "rename the directory")


def _refuse(problems: Problems, plan: Plan) -> None:
    cluster, site = plan.cluster, plan.cluster.site
    for what in ("partition", "account", "qos", "reservation", "gpu_type", "memory_per_node"):
        shell.refuse_directive(problems, what, getattr(site, what))
    shell.refuse_directive(problems, "constraint", site.constraint, more="&|*[]()!")
    known = ("gpus-per-node", "gres", "none")
    if site.gpu_request not in known:
        problems.add(f"gpu_request {site.gpu_request!r} is not one of {', '.join(known)}", "correct the site")
    elif (site.gpu_request == "none") != cluster.accelerator.is_cpu:
        problems.add(
            f"gpu_request {site.gpu_request!r} on a cluster of {cluster.accelerator.name}",
            "machines without GPUs need gpu_request none, all others gpus-per-node or gres",
        )
    most = site.max_gpus_per_node
    if most and cluster.gpus_per_node > most:
        problems.add(
            f"{cluster.gpus_per_node} GPUs per node, but the partition gives a job at most {most}: "
            "it would never start",
            f"plan with --gpus-per-node {most}",
        )
