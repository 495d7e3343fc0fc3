"""The ``toolkit`` command: a table of commands, each imported only when it runs."""

from __future__ import annotations

import importlib
import io
import os
import sys

import click

from toolkit import __version__
from toolkit.errors import ToolkitError

# name: (module, one line for --help). A test freezes this table.
COMMANDS = {
    "plan": ("toolkit.cli.plan", "Rank training plans for a model and a cluster, and write the best one's files."),
    "estimate": ("toolkit.cli.estimate", "Evaluate one strategy whose every degree is given."),
    "emit": ("toolkit.cli.emit", "Write the configuration files and launch scripts of a plan.json."),
    "launch": ("toolkit.cli.launch", "Plan a recipe for this cluster, write its files, and start or submit it."),
    "validate": ("toolkit.cli.validate", "Compare predictions with measured runs: errors of time and memory."),
    "check": ("toolkit.cli.check", "Read your own launch scripts and hostfiles, and tell what is wrong with them."),
    "verify": (
        "toolkit.cli.verify",
        "Run a plan's framework dry, without GPUs, and count bytes beside the predicted ones.",
    ),
    "parity": (
        "toolkit.cli.parity",
        "Train with one process and with several, compare every step, and name what differs.",
    ),
    "profile": (
        "toolkit.cli.profile",
        "Run a recipe on one device, measured beside predicted, and write its calibration.",
    ),
    "ckpt": ("toolkit.cli.ckpt", "List, verify and prune checkpoints of any framework; which one to go on from."),
    "preflight": (
        "toolkit.cli.preflight",
        "Inside a job: are its nodes, storage and network fit for the plan? Names bad nodes.",
    ),
    "goodput": ("toolkit.cli.goodput", "The share of a run's time in steps that were kept, and where the rest went."),
    "models": ("toolkit.cli.models", "List models, or count the parameters of one."),
    "accelerators": ("toolkit.cli.accelerators", "List accelerators with the source of their figures, or show one."),
    "clusters": ("toolkit.cli.clusters", "List named clusters, or show one."),
    "recipes": ("toolkit.cli.recipes", "List recipes, or show one."),
}


INTERRUPTED = 128 + 2  # as a shell tells an end by SIGINT


class LazyGroup(click.Group):
    """Imports a command's module when that command is asked for, and never for ``--help``."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command object ``command`` of the module in the table."""
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[name][0]).command
        return command

    def invoke(self, context: click.Context) -> object:
        """Run the command; a reader that went away (``| head``) is no failure, which click would make of it."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that Python's own flush at exit does not fail
            sys.exit(0)
        except KeyboardInterrupt:  # which click would end with 1, as what was looked for and found
            click.echo("\ninterrupted", err=True)
            sys.exit(INTERRUPTED)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The help table, from the one-liners: nothing is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toolkit")
def group() -> None:
    """Plan, emit and run distributed training with DeepSpeed, FSDP and Megatron.

    Start with:  toolkit plan --params 7B --gpus 64
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line; problems go to stderr as sentences, with exit code 2 (input) or 1 (nothing fits)."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another one
    try:
        group.main(args=argv, prog_name="toolkit", standalone_mode=True)
    except ToolkitError as error:
        for problem in error.problems:
            click.echo(f"error: {problem.message}", err=True)
            if problem.remedy:
                click.echo(f"  {problem.remedy}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:  # of output, or of the working folder: what is read and written catches its own
        click.echo(f"error: {error}", err=True)
        click.echo("  a full disk, a folder that is gone, or one without permission: choose another place", err=True)
        sys.stdout = None  # what is left in its buffer cannot be written either
        sys.exit(2)


def _open_what_is_closed() -> None:
    """Streams that the caller has closed (``>&-``) go nowhere; else the next file to be opened would be one of them."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
