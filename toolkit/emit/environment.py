"""Environment variables of a job: only those that it needs, each with its reason."""

from __future__ import annotations

import re

from toolkit.emit import shell
from toolkit.errors import Problems
from toolkit.plan import Plan

BEFORE_BLACKWELL = ("volta", "turing", "ampere", "ada", "hopper")
SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)$")
MOST_THREADS = 8


def variables(plan: Plan) -> dict[str, str]:
    """Sorted by name; the site's own come last and win.

    ``OMP_NUM_THREADS``: torchrun's own default is 1, and an offloaded optimizer needs the cores.
    ``TOKENIZERS_PARALLELISM=false``: loader processes fork after the tokenizer has started threads.
    ``PYTORCH_ALLOC_CONF`` on NVIDIA GPUs: expandable segments, for less fragmentation near the limit.
    ``CUDA_DEVICE_MAX_CONNECTIONS=1`` for Megatron with tp or cp above 1 on GPUs before Blackwell, which
    asserts it to keep kernels and collectives in order; never for the others, FSDP gets slower by it.
    ``NCCL_SOCKET_IFNAME`` and ``GLOO_SOCKET_IFNAME`` where the site names its interface: a wrong guess
    is worse than none.

    Source: Megatron-LM core_v0.16.1 ``arguments.py``, PyTorch 2.13 documentation of the allocator.
    Raises ToolkitError for a site variable that is no name, or that looks like a secret: scripts are
    committed and mailed around, and sbatch passes the submitter's environment on anyway.
    """
    strategy, cluster = plan.strategy, plan.cluster
    accelerator, site = cluster.accelerator, cluster.site
    on_gpu = not accelerator.is_cpu
    values = {"OMP_NUM_THREADS": str(threads(plan)), "TOKENIZERS_PARALLELISM": "false"}
    if on_gpu and accelerator.vendor == "NVIDIA":
        values["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    ordered = strategy.framework == "megatron" and (strategy.tp > 1 or strategy.cp > 1)
    if ordered and accelerator.vendor == "NVIDIA" and accelerator.architecture in BEFORE_BLACKWELL:
        values["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if site.network_interface:
        values["GLOO_SOCKET_IFNAME"] = site.network_interface
        if on_gpu:
            values["NCCL_SOCKET_IFNAME"] = site.network_interface
    values |= site.environment
    _refuse(values)
    return dict(sorted(values.items()))


def threads(plan: Plan) -> int:
    """Cores of a node divided by its processes; at most 8 unless the optimizer runs on them."""
    cluster = plan.cluster
    cores = cluster.site.cpus_per_node or cluster.host_cores
    each = max(1, cores // max(1, cluster.gpus_per_node))
    return each if plan.strategy.offload else min(each, MOST_THREADS)


def exports(plan: Plan) -> list[str]:
    """``export NAME=value`` lines."""
    return [f"export {shell.assignment(name, value)}" for name, value in variables(plan).items()]


def _refuse(environment: dict[str, str]) -> None:
    with Problems() as problems:
        for name, value in environment.items():
            if not shell.NAME.fullmatch(name):
                problems.add(f"{name!r} is not the name of an environment variable", "use letters, digits and _")
            elif SECRET.search(name.upper()):
                problems.add(
                    f"{name} looks like a secret and would be written into the scripts",
                    "take it out of the site's environment and export it in the shell that calls sbatch",
                )
            shell.refuse_unspeakable(problems, f"environment variable {name}", value)
