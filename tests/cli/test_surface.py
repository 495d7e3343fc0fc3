"""The command line is an interface: its commands and options are frozen here, to be changed on purpose."""

import importlib

import click
import pytest

from toolkit.cli.main import COMMANDS

SHARED = {
    "params",
    "model",
    "recipe",
    "gpus",
    "accelerator",
    "cluster",
    "gpus-per-node",
    "sequence-length",
    "global-batch",
    "tokens",
    "dataset",
    "tokenizer",
    "learning-rate",
    "lora-rank",
    "framework",
    "method",
    "precision",
    "optimizer",
    "price-per-gpu-hour",
    "calibration",
    "tp",
    "tensor-parallel",
    "pp",
    "pipeline-parallel",
    "cp",
    "context-parallel",
    "ep",
    "expert-parallel",
    "etp",
    "expert-tensor-parallel",
    "dp",
    "data-parallel",
    "dp-shard",
    "vpp",
    "virtual-pipeline-stages",
    "zero",
    "hpz",
    "micro-batch",
    "accumulation",
    "sequence-parallel",
    "no-sequence-parallel",
    "recompute",
    "recompute-layers",
    "cp-method",
    "offload",
}
OPTIONS = {
    "plan": SHARED | {"objective", "compute-optimal", "top", "pick", "explain", "out", "force", "json"},
    "estimate": SHARED | {"explain", "out", "force", "json"},
    "parity": {
        "against",
        "steps",
        "method",
        "optimizer",
        "cluster",
        "model",
        "dataset",
        "sequence-length",
        "global-batch",
        "packing",
        "no-packing",
        "keep",
        "time-limit",
        "json",
    },
    "goodput": {"json"},
    "preflight": {
        "output-dir",
        "rendezvous",
        "nodes",
        "node",
        "hosts",
        "run-id",
        "keep",
        "skip",
        "time-limit",
        "json",
    },
    "profile": {
        "steps",
        "warm-up",
        "cluster",
        "accelerator",
        "framework",
        "precision",
        "dataset",
        "global-batch",
        "micro-batch",
        "calibration",
        "out",
        "force",
        "time-limit",
        "json",
    },
    "check": {
        "gpus",
        "gpus-per-node",
        "max-gpus-per-node",
        "cluster",
        "node-cpus",
        "step-seconds",
        "save-seconds",
        "samples",
        "samples-per-second",
        "timeout-seconds",
        "json",
    },
    "verify": {"layers", "tolerance", "time-limit", "json"},
    "validate": {"calibration", "brief", "leave-one-source-out", "fit", "experts", "residuals", "force", "json"},
}


def options_of(command: click.Command) -> set[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        found = [command.get_command(context, name) for name in command.list_commands(context)]
        return set.union(*(options_of(each) for each in found if each is not None))
    return {
        name.lstrip("-")
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def test_the_commands() -> None:
    assert list(COMMANDS) == [
        "plan",
        "estimate",
        "emit",
        "launch",
        "validate",
        "check",
        "verify",
        "parity",
        "profile",
        "ckpt",
        "preflight",
        "goodput",
        "models",
        "accelerators",
        "clusters",
        "recipes",
    ]


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_the_options(name: str) -> None:
    assert options_of(importlib.import_module(COMMANDS[name][0]).command) == OPTIONS[name]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_has_help_and_every_command_json(name: str) -> None:
    command = importlib.import_module(COMMANDS[name][0]).command
    assert command.help
    without = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
    assert [option for option in without if option not in ("framework", "precision", "objective")] == []
    if name != "emit":
        assert "json" in options_of(command)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_keeps_the_lines_of_its_examples(name: str) -> None:
    command: click.Command = importlib.import_module(COMMANDS[name][0]).command
    text = command.get_help(click.Context(command))
    assert "\\b" not in text
    examples = [line for line in text.splitlines() if f"toolkit {name}" in line]
    assert all(line.strip().count("toolkit ") == 1 for line in examples), text
