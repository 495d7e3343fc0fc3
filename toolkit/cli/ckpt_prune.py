"""``toolkit ckpt prune``: delete what need not stay, and nothing that anything points to."""

from __future__ import annotations

import json
from pathlib import Path

import click

from toolkit.cli.ckpt_rows import Remote, as_json, look, where
from toolkit.errors import ToolkitError


@click.command("prune")
@where
@click.option("--keep", type=click.IntRange(1), default=2, show_default=True, help="Newest valid ones that stay.")
@click.option("--keep-every", type=click.IntRange(0), default=0, metavar="STEPS", help="Multiples of it stay for good.")
@click.option("--broken", is_flag=True, help="Delete broken ones that are older than the newest valid one, too.")
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@as_json
def command(directory: str, keep: int, keep_every: int, broken: bool, dry_run: bool, as_json: bool) -> None:
    """Delete valid checkpoints that need not stay; never the newest valid one, nor the one a pointer names."""
    from toolkit.runtime import folders, retention, storage
    from toolkit.runtime import found as founds
    from toolkit.runtime import holder as holders

    directory, found = look(directory)
    if not found:
        raise ToolkitError(f"no checkpoints in {directory}", remedy="give a run's output directory, or one checkpoint")
    damages, sound = {}, 0
    for each in reversed(found):  # of those for which others go every byte is read, where that is no download
        damages[each] = each.damage(deep=sound < keep and not storage.is_url(directory))
        sound += not any(damage.fatal for damage in damages[each])
    states = [(each, not any(damage.fatal for damage in damages[each])) for each in found]
    later = [each.name for each in found if any(damage.kind == "later" for damage in damages[each])]
    valid = [each for each, good in states if good]
    gone = retention.doomed([(each, each.step) for each in valid], keep, keep_every)
    if not storage.is_url(directory):
        holder = holders.whose(directory)
        if holder and not dry_run:
            raise ToolkitError(
                f"{directory} belongs to {holder}", remedy="it prunes by itself: see --keep of its program"
            )
        places = {each: founds.pointer(Path(directory), each) for each in found}
        gone = [each for each in gone if not ((place := places[each]) and founds.held(place[0]) == place[1])]
    if broken and valid:
        gone += [each for each, good in states if not (good or each.name in later) and each.step < valid[-1].step]
    for each in gone if not dry_run else ():
        each.discard() if isinstance(each, Remote) else founds.discard(each)
    if not dry_run and not storage.is_url(directory):
        founds.discard_rest(Path(directory))
    names = [each.name for each in gone]
    if as_json:
        stay = [each.name for each in found if each.name not in names]
        click.echo(json.dumps({"deleted": names, "kept": stay, "dry_run": dry_run}, indent=2))
        return
    for name in names:
        click.echo(f"{'would delete' if dry_run else 'deleted'} {folders.shown(name)}")
    for name in later:
        click.echo(f"kept {name}: it is of another version of this toolkit")
    if not names:
        click.echo("nothing to delete")
