"""``toolkit ckpt``: which checkpoints there are, which of them are sound, and which to go on from."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.errors import NoFeasiblePlan, ToolkitError

if TYPE_CHECKING:
    from toolkit.runtime.found import Found
    from toolkit.runtime.manifest import Damage

# name: (module, its command); others than these are loaded when they are asked for
ELSEWHERE = {"convert": ("toolkit.cli.ckpt_convert", "command")}


class Commands(click.Group):
    """Sub-commands of this module, and those of :data:`ELSEWHERE`."""

    def list_commands(self, context: click.Context) -> list[str]:
        """All names."""
        return [*super().list_commands(context), *ELSEWHERE]

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
    toolkit ckpt prune run/ --keep-last 3 --keep-every 1000
    """


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
where = click.argument("directory", metavar="DIR|URL")


@command.command("list")
@where
@as_json
def list_command(directory: str, as_json: bool) -> None:
    """List the checkpoints below DIR, oldest first; sizes and formats are looked at, sums are not taken."""
    found = _look(directory)
    rows = [_row(each, deep=False) for each in found]
    newest = next((row["name"] for row in reversed(rows) if row["valid"]), None)
    if as_json:
        click.echo(json.dumps({"checkpoints": rows, "newest_valid": newest}, indent=2))
        return
    for row in rows:
        first = next((each for each in row["damage"] if each["fatal"]), None)
        more = sum(each["fatal"] for each in row["damage"]) - 1
        state = "valid" if first is None else f"broken: {first['file']}: {first['text']}"
        state += f" (and {more} more)" if more > 0 else ""
        click.echo(f"{row['name']:<20} {row['kind']:<12} {row['size']:>10}  {state}")
    if not rows:
        click.echo(f"no checkpoints in {directory}")
    elif newest is None:
        click.echo("none of them is valid")
    else:
        click.echo(f"newest valid: {newest}")
        broken = [row["name"] for row in rows[[row["name"] for row in rows].index(newest) + 1 :]]
        chosen = next(each for each in found if each.name == newest)
        for line in _pointer(directory, chosen, broken, write=False)["text"]:
            click.echo(line)


@command.command("verify")
@where
@click.option("--quick", is_flag=True, help="Only sizes and formats; no sums.")
@as_json
def verify_command(directory: str, quick: bool, as_json: bool) -> None:
    """Read every checkpoint of DIR, or DIR itself, and name what is damaged, file by file; exit code 1 if any is."""
    rows = [_row(each, deep=not quick) for each in _look(directory)]
    if not rows:
        raise ToolkitError(f"no checkpoints in {directory}", remedy="give a run's output directory, or one checkpoint")
    if as_json:
        click.echo(json.dumps({"checkpoints": rows}, indent=2))
    else:
        for row in rows:
            click.echo(f"{row['name']}: {'valid' if row['valid'] else 'broken'}, {row['files']} files, {row['size']}")
            for each in row["damage"]:
                click.echo(f"  {each['kind']:<10} {each['file']}: {each['text']}")
    broken = [row["name"] for row in rows if not row["valid"]]
    if broken:
        raise NoFeasiblePlan(
            f"{len(broken)} of {len(rows)} broken: {', '.join(broken)}",
            remedy=f"toolkit ckpt latest {directory} tells which one to go on from",
        )


@command.command("latest")
@where
@click.option("--write", is_flag=True, help="Correct the file by which its framework finds the newest one.")
@click.option("--quick", is_flag=True, help="Only sizes and formats; no sums.")
@as_json
def latest_command(directory: str, write: bool, quick: bool, as_json: bool) -> None:
    """Print the newest valid checkpoint of DIR; exit code 1 if there is none."""
    found = _look(directory)
    rows: list[dict[str, Any]] = []
    for each in reversed(found):
        rows.append(_row(each, deep=not quick))
        if rows[-1]["valid"]:
            break
    if not rows or not rows[-1]["valid"]:
        raise NoFeasiblePlan(
            f"no valid checkpoint in {directory}", remedy=f"toolkit ckpt verify {directory} names what is damaged"
        )
    chosen = found[len(found) - len(rows)]
    advice = _pointer(directory, chosen, [row["name"] for row in rows[:-1]], write)
    if as_json:
        answer = {"name": chosen.name, "path": str(_path(chosen)), "step": chosen.step, "kind": chosen.kind}
        click.echo(json.dumps(answer | {"passed_over": rows[:-1], "pointer": advice}, indent=2))
        return
    click.echo(str(_path(chosen)))
    for row in rows[:-1]:
        first = next(each for each in row["damage"] if each["fatal"])
        click.echo(f"passed over {row['name']}: {first['kind']} {first['file']}: {first['text']}", err=True)
    for line in advice["text"]:
        click.echo(line, err=True)


@command.command("prune")
@where
@click.option("--keep-last", type=click.IntRange(1), default=2, show_default=True, help="Newest valid ones that stay.")
@click.option("--keep-every", type=click.IntRange(0), default=0, metavar="STEPS", help="Multiples of it stay for good.")
@click.option("--broken", is_flag=True, help="Delete broken ones that are older than the newest valid one, too.")
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@as_json
def prune_command(directory: str, keep_last: int, keep_every: int, broken: bool, dry_run: bool, as_json: bool) -> None:
    """Delete valid checkpoints that need not stay; never the newest valid one, nor the one a pointer names."""
    from toolkit.runtime import found as founds
    from toolkit.runtime import lease, retention, storage

    found = _look(directory)
    states = [(each, not any(damage.fatal for damage in _damage(each, deep=False))) for each in found]
    valid = [each for each, good in states if good]
    gone = retention.doomed([(each, each.step) for each in valid], keep_last, keep_every)
    if not storage.is_url(directory):
        holder = lease.holder(directory)
        if holder and not dry_run:
            raise ToolkitError(
                f"{directory} belongs to {holder}", remedy="it prunes by itself: see --keep of its program"
            )
        places = {each: founds.pointer(Path(directory), each) for each in found}
        gone = [each for each in gone if not ((place := places[each]) and founds.held(place[0]) == place[1])]
    if broken and valid:
        gone += [each for each, good in states if not good and each.step < valid[-1].step]
    for each in gone if not dry_run else ():
        each.discard() if isinstance(each, _Remote) else founds.discard(each)
    names = [each.name for each in gone]
    if as_json:
        stay = [each.name for each in found if each.name not in names]
        click.echo(json.dumps({"deleted": names, "kept": stay, "dry_run": dry_run}, indent=2))
        return
    for name in names:
        click.echo(f"{'would delete' if dry_run else 'deleted'} {name}")
    if not names:
        click.echo("nothing to delete")


class _Remote:
    """A checkpoint in durable storage, as :class:`toolkit.runtime.found.Found` is one on a disk."""

    kind = "toolkit"

    def __init__(self, url: str, name: str) -> None:
        self.path, self.name = f"{url.rstrip('/')}/{name}", name
        self.step = int("".join(each for each in name if each.isdigit()))

    def damage(self, deep: bool = True) -> list[Damage]:
        from toolkit.runtime import storage

        return storage.damage(self.path, deep)

    def discard(self) -> None:
        from toolkit.runtime import storage

        storage.discard(self.path)


def _look(directory: str) -> list[Any]:
    from toolkit.runtime import found, storage

    if storage.is_url(directory):
        return [_Remote(directory, name) for name in storage.names(directory)]
    return list(found.look(Path(directory)))


def _path(found: Found | _Remote) -> Path | str:
    return found.path


def _damage(found: Found | _Remote, deep: bool) -> list[Damage]:
    return found.damage(deep)


def _row(found: Found | _Remote, deep: bool) -> dict[str, Any]:
    """One checkpoint as plain data."""
    from toolkit.runtime import manifest, storage
    from toolkit.units import format_bytes

    damage = found.damage(deep)
    sizes: dict[str, int] = {}
    saved_at = None
    try:
        if found.kind == "toolkit":
            path = found.path
            known = storage.read(path) if isinstance(path, str) else manifest.read(path)
            sizes, saved_at = {name: each.bytes for name, each in known.files.items()}, known.saved_at
        elif isinstance(found.path, Path):
            sizes = manifest.file_names(found.path)
    except (OSError, ToolkitError):
        pass  # told as damage
    total = sum(sizes.values())
    return {
        "name": found.name,
        "path": str(found.path),
        "step": found.step,
        "kind": found.kind,
        "valid": not any(each.fatal for each in damage),
        "files": len(sizes),
        "bytes": total,
        "size": format_bytes(total),
        "saved_at": saved_at,
        "damage": [{"file": d.file, "kind": d.kind, "text": d.text, "fatal": d.fatal} for d in damage],
    }


def _pointer(directory: str, chosen: Any, broken: list[str], write: bool) -> dict[str, Any]:
    """Whether the framework would find the same one, and what to do where not."""
    import shlex

    from toolkit.runtime import durable, found, storage

    if storage.is_url(directory):
        return {"file": None, "holds": None, "should_hold": None, "text": []}
    place = found.pointer(Path(directory), chosen)
    if place is None:
        text = []
        if broken and chosen.kind in ("huggingface", "torch"):
            base = directory.rstrip("/")
            pairs = [(shlex.quote(f"{base}/{each}"), shlex.quote(f"{base}/incomplete-{each}")) for each in broken]
            moves = "; ".join(f"mv {old} {new}" for old, new in pairs)
            text = [f"its framework takes the one with the highest number: {moves}"]
        return {"file": None, "holds": None, "should_hold": None, "text": text}
    file, wanted = place
    holds = found.held(file)
    text = []
    if holds != wanted and write:
        durable.replace(file, f"{wanted}\n".encode())
        text = [f"{file} now holds {wanted!r}" + (f", it held {holds!r}" if holds is not None else ", it was missing")]
    elif holds != wanted:
        state = "is missing" if holds is None else f"holds {holds!r}"
        text = [
            f"{file} {state}, and the framework looks there: it should hold {wanted!r}",
            f"  echo {shlex.quote(wanted)} > {shlex.quote(str(file))}",
            f"  or: toolkit ckpt latest {shlex.quote(directory)} --write",
        ]
    return {
        "file": str(file),
        "holds": wanted if holds != wanted and write else holds,
        "should_hold": wanted,
        "text": text,
    }
