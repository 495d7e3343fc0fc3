"""Rules of environment variables that nothing reads, and of steps that wait for one another."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.check.commands import Script
from toolkit.check.rules import ERROR, finding
from toolkit.check.text import BATCH, whole
from toolkit.finding import Finding

# names that neither torch 2.13 nor NCCL has: what there is instead
RENAMED = {
    "NCCL_TIMEOUT": "the time-out of init_process_group (--ddp_timeout, --distributed-timeout-minutes)",
    "NCCL_TIMEOUT_MS": "the time-out of init_process_group (--ddp_timeout, --distributed-timeout-minutes)",
    "TORCH_NCCL_TIMEOUT": "the time-out of init_process_group (--ddp_timeout, --distributed-timeout-minutes)",
    "TORCH_DISTRIBUTED_TIMEOUT": "the time-out of init_process_group (--ddp_timeout, --distributed-timeout-minutes)",
    "NCCL_SOCKET_IFACE": "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFACE": "GLOO_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICE": "CUDA_VISIBLE_DEVICES",
}
OF_EACH_TASK = {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_JOB_NUM_NODES"}
MOST_IB_TIMEOUT = 31  # 4.096 us x 2^n, five bits


def environment_findings(script: Script) -> Iterator[Finding]:
    """Variables by names that torch and NCCL do not have, and values that they do not take."""
    for each in script.assignments:
        if each.name in RENAMED:
            yield finding("environment", f"{each.name} is read by nothing", RENAMED[each.name], line=each.line)
        value = whole(each.text)
        if each.name == "NCCL_IB_TIMEOUT" and value is not None and value > MOST_IB_TIMEOUT:
            yield finding(
                "environment",
                f"NCCL_IB_TIMEOUT={value}: it is the exponent of 4.096 us x 2^n, at most {MOST_IB_TIMEOUT}",
                "NCCL_IB_TIMEOUT=22",
                line=each.line,
                severity=ERROR,
            )
        if each.name in OF_EACH_TASK and each.place == BATCH and script.is_batch:
            yield finding(
                "environment",
                f"{each.name} is set by the script, and by Slurm again in every task",
                "a name of your own",
                line=each.line,
            )


def step_findings(script: Script) -> Iterator[Finding]:
    """A step beside one that runs on in the background."""
    if not script.is_batch:
        return
    running = 0
    told: set[int] = set()
    for call in script.calls:
        step = call.step
        if step is None or step.line in told:
            continue
        told.add(step.line)
        apart = {"overlap", "exact", "nodelist", "relative"} & step.options.keys()
        if apart or any(name in step.options for name in ("mem-per-cpu", "cpus-per-task")) and "mem" in step.options:
            continue
        if running:
            yield finding(
                "steps-wait",
                f"srun beside the one of line {running} that runs in the background",
                "--overlap for what only looks on, --exact with its own part of the resources otherwise",
                line=step.line,
            )
            return
        if step.background:
            running = step.line
