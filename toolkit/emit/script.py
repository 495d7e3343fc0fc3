"""The generated head of a script: what follows from the plan, as quoted assignments above a static body."""

from __future__ import annotations

import math
import re

import msgspec

from toolkit import strategy as strategies
from toolkit.emit import environment, shell
from toolkit.emit.refusals import require_layout
from toolkit.errors import Problems, ToolkitError
from toolkit.plan import Plan

PROGRAMS = ("finetune", "pretrain")
LAUNCHERS = ("torchrun", "srun")
# read before anything that another shell would not understand
BASH = '[ -n "${BASH_VERSION:-}" ] || { printf "error: this script is for bash\\n  bash %s\\n" "$0" >&2; exit 2; }'
LEAST_STOP_SECONDS, MOST_STOP_SECONDS = 120, 65535  # the latter is Slurm's own limit
# bf16 weights, fp32 master copy and both Adam moments: what one checkpoint holds
CHECKPOINT_BYTES_PER_PARAMETER = 14.0
ASSUMED_STORAGE_BYTES_PER_SECOND = 2.0e9  # assumed where the cluster does not say: a modest shared file system
LONGEST_TIME_LIMIT = 32  # characters; Slurm counts at most 2^32 minutes
TIME_LIMIT = re.compile(
    r"(?P<minutes>\d+)|(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<m>\d+):(?P<s>\d+)|(?P<mm>\d+):(?P<ss>\d+)"
    r"|(?P<d>\d+)-(?P<h>\d+)(?::(?P<hm>\d+))?",
    re.ASCII,
)


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """Where a script finds its files. Names are relative to ``directory``; an empty name means there is none."""

    directory: str
    plan: str = "plan.json"
    deepspeed: str = ""
    megatron: str = ""
    output_directory: str = ""  # empty: "run" inside the directory


def files_of(plan: Plan, directory: str) -> Files:
    """The files that a bundle of this plan has."""
    framework = plan.strategy.framework
    return Files(
        directory=directory,
        deepspeed="ds_config.json" if framework == "deepspeed" else "",
        megatron="megatron_core.json" if framework == "megatron" else "",
    )


def assignments(plan: Plan, files: Files) -> list[str]:
    """``set``, exports and the variables that every body reads, after checking everything that goes into them."""
    cluster, site = plan.cluster, plan.cluster.site
    with Problems() as problems:
        require_layout(problems, plan)
        if plan.program not in PROGRAMS:
            problems.add(f"program {plan.program!r} is not one of {', '.join(PROGRAMS)}", "plan again")
        for what in Files.__struct_fields__:
            shell.refuse_unspeakable(problems, f"{what} file", getattr(files, what))
        if site.setup_command:
            shell.refuse_lines(problems, "setup_command", site.setup_command)
        for module in site.modules:
            shell.refuse_lines(problems, "module", module)
        try:
            environment.variables(plan)
        except ToolkitError as error:
            problems.absorb(error)
    variables: dict[str, str | int | tuple[str, ...]] = {
        "deepspeed_file": files.deepspeed,
        "gpus_per_node": gpus_per_node(plan),
        "megatron_file": files.megatron,
        "modules": site.modules,
        "nodes": cluster.nodes,
        "plan_file": files.plan,
        "planned_processes": plan.strategy.tp * plan.strategy.pp * plan.strategy.cp * plan.strategy.dp,
        "processes_per_node": cluster.gpus_per_node,
        "program": f"recipes.{plan.program}.train",
        # 0: the program's own default, where nothing is known of failures
        "save_steps": plan.resilience.checkpoint_steps if plan.resilience is not None else 0,
        "setup_command": site.setup_command,
        "stop_seconds": stop_seconds(plan),
    }
    lines = [shell.assignment(name, value) for name, value in variables.items()]
    return [BASH, "set -euo pipefail", *environment.exports(plan), *lines]


def location(directory: str, output_directory: str) -> list[str]:
    """Where the files are and where the run writes; a leading dash is kept from looking like an option."""
    return [
        shell.assignment("directory", shell.path(directory)),
        shell.assignment("output_directory", shell.path(output_directory or f"{directory.rstrip('/')}/run")),
    ]


def title(plan: Plan) -> list[str]:
    """Comment lines that say what the script is for."""
    cluster = plan.cluster
    return [
        shell.comment(f"{plan.name}: {strategies.describe(plan.strategy)}"),
        shell.comment(f"for {cluster.nodes} x {cluster.gpus_per_node} {cluster.accelerator.name} ({cluster.name})"),
        shell.comment(f"Written by toolkit {plan.toolkit_version} with calibration {plan.calibration}:"),
        shell.comment("change the plan, not this file."),
    ]


def stop_seconds(plan: Plan) -> int:
    """``2 (t_step + t_save) + 60``: how long before the end a job is asked to stop, in seconds.

    One step may have just begun, and writing may take twice as long as on a quiet file system; Slurm's
    clock ticks once a minute. At least 120 s, at most half of the time limit (:func:`stop_note` tells). An evaluation
    stops at its next batch, which takes no longer than a step. ``t_save`` is the plan's own
    (R6), or the checkpoint's bytes over the storage bandwidth where the plan says nothing of failures.
    """
    wanted = min(_stop_seconds_wanted(plan), MOST_STOP_SECONDS)
    limit = limit_seconds(plan.cluster.site.time_limit)
    return min(wanted, max(1, limit // 2)) if limit else wanted


def stop_note(plan: Plan) -> str:
    """One sentence where a job is asked to stop later than a step and a save may need; empty where it is not."""
    given, wanted = stop_seconds(plan), _stop_seconds_wanted(plan)
    if given >= wanted:
        return ""
    text = f"a job is asked to stop {given} s before its time limit, and a step and a save may take {wanted} s"
    if given == MOST_STOP_SECONDS:
        return f"{text}: Slurm has no longer warning"
    limit = plan.cluster.site.time_limit
    return f"{text}: that is half of the limit {limit}; give the site a time_limit of {2 * wanted} s or more"


def _stop_seconds_wanted(plan: Plan) -> int:
    storage = plan.cluster.storage_bandwidth_bytes_per_second or ASSUMED_STORAGE_BYTES_PER_SECOND
    saving = CHECKPOINT_BYTES_PER_PARAMETER * plan.total_parameters / storage
    if plan.resilience is not None:
        saving = plan.resilience.checkpoint_seconds
    return max(math.ceil(min(2.0 * (plan.step.seconds + saving) + 60.0, 2.0**31)), LEAST_STOP_SECONDS)


def limit_seconds(text: str) -> int:
    """Seconds of a Slurm time limit (``90``, ``90:00``, ``12:00:00``, ``2-0``, ``2-12:30:00``); 0 for none given.

    Raises ToolkitError for anything else.
    """
    if not text or text.upper() in ("UNLIMITED", "INFINITE"):
        return 0
    match = TIME_LIMIT.fullmatch(text) if len(text) <= LONGEST_TIME_LIMIT else None
    if match is None:
        raise ToolkitError(
            f"time limit {text[:40]!r} is not one of Slurm's", remedy="write it as 12:00:00 or 2-12:00:00"
        )
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    return (
        86400 * (part["days"] + part["d"])
        + 3600 * (part["hours"] + part["h"])
        + 60 * (part["minutes"] + part["m"] + part["mm"] + part["hm"])
        + part["s"]
        + part["ss"]
    )


def gpus_per_node(plan: Plan) -> int:
    """GPUs that each node of the job needs; 0 where the work is done by processors."""
    return 0 if plan.cluster.accelerator.is_cpu else plan.cluster.gpus_per_node
