"""``toolkit ckpt``: which checkpoints there are, which of them are sound, and which to go on from."""

from __future__ import annotations

import importlib
import json
import shlex
from typing import Any

import click

from toolkit.cli.ckpt_rows import as_json, loading, look, plain, pointer, row, where
from toolkit.errors import NoFeasiblePlan, ToolkitError

# name: (module, its command); others than these are loaded when they are asked for
ELSEWHERE = {"convert": ("toolkit.cli.ckpt_convert", "command"), "prune": ("toolkit.cli.ckpt_prune", "command")}


class Commands(click.Group):
    """Sub-commands of this module, and those of :data:`ELSEWHERE`."""

    def list_commands(self, context: click.Context) -> list[str]:
        """All names."""
        return sorted([*super().list_commands(context), *ELSEWHERE])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """From its own module, where it has one."""
        if name in ELSEWHERE:
            module, attribute = ELSEWHERE[name]
            found: click.Command = getattr(importlib.import_module(module), attribute)
            return found
        return super().get_command(context, name)


@click.group("ckpt", cls=Commands)
def command() -> None:
    """Look after checkpoints: of this toolkit's programs, DeepSpeed, the Hugging Face Trainer, Megatron and torch.

    \b
    toolkit ckpt list run/
    toolkit ckpt verify run/checkpoint-400
    toolkit ckpt latest run/ --write
    toolkit ckpt prune run/ --keep 3 --keep-every 1000
    """


@command.command("list")
@where
@as_json
def list_command(directory: str, as_json: bool) -> None:
    """List the checkpoints below DIR, oldest first.

    ``complete`` is one whose files are all there with their sizes and formats: sums are not taken, as ``verify`` does,
    so that a changed byte is not seen. Exit code 1 where there are some and none is complete: a run would begin at its
    first step again.
    """
    directory, found = look(directory)
    rows = [row(each, deep=False) for each in found]
    newest = next((each["name"] for each in reversed(rows) if each["valid"]), None)
    if as_json:
        click.echo(json.dumps({"checkpoints": rows, "newest_valid": newest}, indent=2))
    else:
        _list(directory, found, rows, newest)
    if rows and newest is None and not any(each["under_way"] for each in rows):
        raise NoFeasiblePlan(
            f"none of the {len(rows)} checkpoints in {directory} is complete",
            remedy=f"toolkit ckpt verify {shlex.quote(directory)} names what is damaged",
        )


def _list(directory: str, found: list[Any], rows: list[dict[str, Any]], newest: str | None) -> None:
    for shown in map(plain, rows):
        first = next((each for each in shown["damage"] if each["fatal"]), None)
        more = sum(each["fatal"] for each in shown["damage"]) - 1
        state = _unread(shown) if first is None else f"broken: {first['file']}: {first['text']}"
        state += f" (and {more} more)" if more > 0 else ""
        state = _under_way(shown) or state
        click.echo(f"{shown['name']:<20} {shown['kind']:<12} {shown['size']:>10}  {state}")
    if not rows:
        click.echo(f"no checkpoints in {directory}")
    elif newest is not None:
        click.echo(f"newest complete: {newest}; toolkit ckpt verify {shlex.quote(directory)} reads every byte")
        names = [each["name"] for each in rows]
        broken = names[names.index(newest) + 1 :]
        chosen = next(each for each in found if each.name == newest)
        for line in pointer(directory, chosen, broken, write=False)["text"]:
            click.echo(line)


def _under_way(shown: dict[str, Any]) -> str:
    """Of one that a run saves or deletes in this moment; empty of others."""
    return f"not committed: being saved, or deleted, by {shown['under_way']}" if shown["under_way"] else ""


def _unread(shown: dict[str, Any]) -> str:
    """The state of one in which nothing is wrong by sizes and formats."""
    return "complete (sums not taken)" if shown["committed"] else "complete (it has no sums)"


@command.command("verify")
@where
@click.option("--quick", is_flag=True, help="Only sizes and formats; no sums.")
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="Of the run to come, for the memory that loading takes.",
)
@as_json
def verify_command(directory: str, quick: bool, ranks_per_node: int, as_json: bool) -> None:
    """Read every checkpoint of DIR, or DIR itself, and name what is damaged, file by file; exit code 1 if any is.

    One that a run saves in this moment is told, and is not damaged.
    Of a checkpoint that this toolkit has not committed, what its formats tell: each file by itself, the shards and
    random states of all ranks, what indexes name. Of its own also every sum, and whether ranks, step, position in the
    data and contract are those of one moment of one run.
    """
    directory, found = look(directory)
    rows = [row(each, deep=not quick) | loading(each, ranks_per_node) for each in found]
    if not rows:
        raise ToolkitError(f"no checkpoints in {directory}", remedy="give a run's output directory, or one checkpoint")
    if as_json:
        click.echo(json.dumps({"checkpoints": rows}, indent=2))
    else:
        noted = next((each["name"] for each in reversed(rows) if each["notes"]), None)  # much the same for each
        for shown, name in ((plain(each), each["name"]) for each in rows):
            state = "broken" if not shown["valid"] else _unread(shown) if quick else "valid"
            if shown["under_way"]:
                click.echo(f"{shown['name']}: {_under_way(shown)}")
                continue
            if not shown["committed"]:
                state = f"{'looks whole' if shown['valid'] else 'broken'}, not committed by this toolkit"
            click.echo(f"{shown['name']}: {state}, {shown['files']} files, {shown['size']}")
            for note in shown["notes"] if name == noted else ():
                click.echo(f"  note       {note}")
            for each in shown["damage"]:
                click.echo(f"  {each['kind']:<10} {each['file']}: {each['text']}")
    broken = [plain(each)["name"] for each in rows if not each["valid"] and not each["under_way"]]
    if broken:
        raise NoFeasiblePlan(
            f"{len(broken)} of {len(rows)} broken: {', '.join(broken)}",
            remedy=f"toolkit ckpt latest {_run_of(directory, found)} tells which one to go on from",
        )


def _run_of(directory: str, found: list[Any]) -> str:
    """Where the others of the run lie, also where one checkpoint was given."""
    alone = len(found) == 1 and str(found[0].path) == directory.rstrip("/")
    return directory.rstrip("/").rpartition("/")[0] or "." if alone else directory


@command.command("latest")
@where
@click.option("--write", is_flag=True, help="Correct the file by which its framework finds the newest one.")
@click.option("--quick", is_flag=True, help="Only sizes and formats; no sums.")
@as_json
def latest_command(directory: str, write: bool, quick: bool, as_json: bool) -> None:
    """Print the newest valid checkpoint of DIR; exit code 1 if there is none."""
    directory, found = look(directory)
    rows: list[dict[str, Any]] = []
    for each in reversed(found):
        rows.append(row(each, deep=not quick))
        if rows[-1]["valid"]:
            break
    if not rows or not rows[-1]["valid"]:
        damaged = f"toolkit ckpt verify {shlex.quote(directory)} names what is damaged"
        raise NoFeasiblePlan(
            f"no valid checkpoint in {directory}" if rows else f"no checkpoints in {directory}",
            remedy=damaged if rows else "give a run's output directory, or one checkpoint",
        )
    chosen = found[len(found) - len(rows)]
    advice = pointer(directory, chosen, [each["name"] for each in rows[:-1]], write)
    if as_json:
        answer = {"name": chosen.name, "path": str(chosen.path), "step": chosen.step, "kind": chosen.kind}
        click.echo(json.dumps(answer | {"passed_over": rows[:-1], "pointer": advice}, indent=2))
        return
    click.echo(str(chosen.path))
    for passed in map(plain, rows[:-1]):
        first = next(each for each in passed["damage"] if each["fatal"])
        click.echo(f"passed over {passed['name']}: {first['kind']} {first['file']}: {first['text']}", err=True)
    for line in advice["text"]:
        click.echo(line, err=True)
