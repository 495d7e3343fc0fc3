"""Launchers of training programs in a script: torchrun, accelerate, deepspeed, or one task per process.

Flags are those of torch 2.13 (``torch.distributed.run``), accelerate 1.15 (``commands/launch.py``) and DeepSpeed 0.19
(``launcher/runner.py``); ``-`` and ``_`` in names are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.check.commands import Call, Script
from toolkit.check.text import whole

FLAGS = {
    "torchrun": {"standalone", "no_python", "run_path", "m", "module", "no_local_rank", "use_env", "h", "help"},
    "accelerate": {
        "multi_gpu", "cpu", "tpu", "mps", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_xpu", "use_tp",
        "use_parallelism_config", "quiet", "q", "m", "module", "no_python", "same_network", "debug", "tpu_use_cluster",
        "tpu_use_sudo", "main_training_function_only", "h", "help", "enable_cpu_affinity", "no_tpu_cluster",
    },
    "deepspeed": {
        "no_python", "module", "no_local_rank", "force_multi", "no_ssh", "no_ssh_check", "elastic_training",
        "bind_cores_to_rank", "h", "help",
    },
}  # fmt: skip
SAME = {
    "nproc-per-node": "nproc_per_node", "proc_per_node": "nproc_per_node", "master_ip": "master_addr",
    "num_procs": "num_processes", "num_gpu": "num_gpus", "H": "hostfile", "i": "include", "e": "exclude",
}  # fmt: skip
PROGRAMS = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
            "accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed"}  # fmt: skip
OUR_TORCHRUN = "toolkit.runtime.torchrun"


@dataclass(frozen=True)
class Launch:
    """A command that starts training processes."""

    kind: str  # torchrun | accelerate | deepspeed | python (a task is a process)
    call: Call
    options: Mapping[str, str]
    program: tuple[str, ...] = ()  # the script and its own arguments
    arguments: Mapping[str, str] = field(default_factory=dict)  # of the program, by name

    @property
    def line(self) -> int:
        """Of the script."""
        return self.call.line

    def number(self, *names: str) -> int | None:
        """The first of the options that is a known number."""
        return next((found for name in names if (found := whole(self.options.get(name, ""))) is not None), None)


def launches(script: Script) -> list[Launch]:
    """Every launch of a script; Python programs count where ``srun`` starts them."""
    found = []
    for call in script.calls:
        launch = _launch(call)
        if launch is not None:
            found.append(launch)
    return found


def _launch(call: Call) -> Launch | None:
    words, name = list(call.words), call.name
    if name in ("python", "python3") or name.startswith("python3."):
        module, rest = _module(words[1:])
        if module == OUR_TORCHRUN:
            return _read("torchrun", call, rest[1:])  # after the output directory
        if module in PROGRAMS:
            return _read(PROGRAMS[module], call, rest)
        program = [word for word in words[1:] if word]
        if call.step is None or not _trains(program) or module == "toolkit":  # its check of the nodes
            return None
        return Launch("python", call, {}, tuple(program), _arguments(program))
    if name in ("torchrun", "ft_launcher"):
        return _read("torchrun", call, words[1:])
    if name == "accelerate" and words[1:2] == ["launch"]:
        return _read("accelerate", call, words[2:])
    if name in ("accelerate-launch", "deepspeed"):
        return _read(name.partition("-")[0], call, words[1:])
    return None


def _trains(words: list[str]) -> bool:
    """A file or module is run, not ``python -c`` or ``python --version``."""
    return not any(word in ("-c", "-V", "--version") for word in words[:2]) and any(
        word.endswith(".py") or word == "-m" for word in words
    )


def _module(words: list[str]) -> tuple[str, list[str]]:
    for at, word in enumerate(words):
        if word == "-m" and at + 1 < len(words):
            return words[at + 1], words[at + 2 :]
        if not word.startswith("-"):
            break
    return "", words


def _read(kind: str, call: Call, words: list[str]) -> Launch:
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].lstrip("-").partition("=")
        name = SAME.get(name, name.replace("-", "_"))
        name = SAME.get(name, name)
        at += 1
        if not equals and name not in FLAGS[kind] and at < len(words):
            value = words[at]
            at += 1
        options[name] = value
    program = words[at + (words[at : at + 1] == ["--"]) :]
    return Launch(kind, call, options, tuple(program), _arguments(program))


def _arguments(words: list[str]) -> dict[str, str]:
    """``--name value`` and ``--name=value`` of a program, dashes as underscores."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        if not equals and at + 1 < len(words) and not words[at + 1].startswith("--"):
            value = words[at + 1]
        found[name.replace("-", "_")] = value
    return found
