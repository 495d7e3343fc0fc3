"""``toolkit ckpt convert``: a checkpoint in another form, in a fresh folder that is there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from toolkit.cli import ckpt_places
from toolkit.cli.ckpt_places import KINDS
from toolkit.errors import ToolkitError

UNIVERSAL, HUGGING_FACE, MEGATRON = "deepspeed-universal", "hugging-face", "megatron"
REFUSED = {
    (UNIVERSAL, "universal"): ("it is one already", "load it as it is"),
    (UNIVERSAL, "megatron"): (
        "that form is DeepSpeed's own",
        "a distributed checkpoint of megatron-core loads at any degrees as it is: start the plan that has them",
    ),
    (MEGATRON, "megatron"): ("it is one already", "load it as it is, at any degrees"),
    (MEGATRON, "adapters"): ("Megatron's program trains no adapters", "write the merged model: train with --merge"),
}
# what has the states of an optimizer tells the names of its parameters beside them (toolkit/runtime/states.py)
WITHOUT_STATES = ("it has no states of an optimizer whose parameters have names", "give the checkpoint-N of a run")
TWO_STEPS = "convert it --to hugging-face first, and what that writes --to megatron"


@click.command("convert")
@click.argument("source_name", metavar="SRC")
@click.argument("target_name", metavar="DST")
@click.option("--to", "form", type=click.Choice([UNIVERSAL, HUGGING_FACE, MEGATRON]), required=True)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Of the weights (hugging-face); default: as the run writes them.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes of DeepSpeed's.")
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="Of the run to come, for what loading takes.",
)
@click.option("--force", is_flag=True, help="Replace DST.")
def command(
    source_name: str, target_name: str, form: str, dtype: str | None, workers: int, ranks_per_node: int, force: bool
) -> None:
    """Write the checkpoint SRC in another form to DST.

    deepspeed-universal: any number of ranks and any of the ZeRO stages 1 to 3 can load it, from checkpoints of DDP,
    FSDP and any ZeRO stage (the training program does this by itself). hugging-face: what from_pretrained reads, of
    adapters what peft reads. megatron: a distributed checkpoint, from a Hugging Face folder.

    \b
    toolkit ckpt convert run/checkpoint-500 model --to hugging-face
    toolkit ckpt convert run/checkpoint-500 universal-500 --to deepspeed-universal
    """
    source, target, kind = ckpt_places.of_conversion(source_name, target_name)
    _refuse(source, kind, form)
    if target.exists() and not force:
        raise ToolkitError(f"{target} exists", remedy="give another DST, or --force")
    if source.resolve() == target.resolve() or target.resolve() in source.resolve().parents:
        raise ToolkitError(f"{target} holds {source} or is it", remedy="give another DST")
    if dtype and (form != HUGGING_FACE or kind == "megatron"):
        raise ToolkitError(f"--dtype does not go with --to {form} from {KINDS[kind]}", remedy="leave it out")
    if form == HUGGING_FACE and kind == "megatron":
        return _program("to-hf", source, target, force)  # which verifies it
    if form == MEGATRON:
        return _program("to-megatron", source, target, force)
    from toolkit.runtime import found

    if not found.require_sound(source) and not _plain(source, kind):
        click.echo(f"note: {source} has no manifest: nobody knows whether it is whole", err=True)
    partial = target.with_name(f".{target.name}.partial.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    # inside of a folder of its own: a commit also moves the pointer beside the checkpoint
    made = partial / target.name
    try:
        made.mkdir(parents=True)
        _write(form, source, made, dtype or "", workers, ranks_per_node)
        if target.exists():
            _remove(target)
        made.rename(target)
    except (click.ClickException, ToolkitError):
        raise
    except Exception as error:  # each library tells a full disk, and what it cannot read, by errors of its own
        raise _impossible(source, target, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _refuse(source: Path, kind: str, form: str) -> None:
    reason = REFUSED.get((form, kind))
    if reason is None and form == MEGATRON and kind != "hugging-face":
        reason = ("it is not in names that the converter reads", TWO_STEPS)
    if reason is None and form == UNIVERSAL and not _sharded(source) and not _named(source):
        reason = WITHOUT_STATES
    if reason is not None:
        raise ToolkitError(f"{source} is {KINDS[kind]}: {reason[0]}", remedy=reason[1])


def _sharded(source: Path) -> bool:
    """Whether it is of DeepSpeed's stages 1 to 3, or is to be, as its folder says."""
    from toolkit.runtime import universal

    folders = [path for path in source.glob("global_step*") if path.is_dir()]
    whole = [path for path in folders if (path / "mp_rank_00_model_states.pt").is_file()]
    if len(folders) != 1 or not whole:
        return bool(folders)
    if any(whole[0].glob("*_optim_states.pt")):
        return True
    return not _named(source) and universal.LATEST in {path.name for path in source.iterdir()}


def _named(source: Path) -> bool:
    from toolkit.runtime.states import PARAMETERS

    return (source / PARAMETERS).is_file()


def _plain(source: Path, kind: str) -> bool:
    """Whether it is a model as everybody gives it away, which nobody expects a manifest of."""
    return kind in ("hugging-face", "adapters") and not any(
        (source / name).exists() for name in ("trainer_state.json", "optimizer.pt")
    )


def _impossible(source: Path, target: Path, error: Exception) -> ToolkitError:
    """What to raise for it: the file system has refused, or else a library does not understand what is there."""
    from toolkit.errors import reason
    from toolkit.runtime import room

    refused = room.refusal(error)
    if refused is not None:
        what = "make room, or give another DST" if refused.errno in room.NO_ROOM else "give another DST"
        return ToolkitError(f"cannot write {target}: {reason(refused)}", remedy=f"{what}; what was there is as it was")
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return ToolkitError(
        f"cannot convert {source}, whose files are whole and not of the form that was looked for: {said[:300]}",
        remedy="convert another checkpoint, or this one with the version of the library that wrote it",
    )


def _write(form: str, source: Path, made: Path, dtype: str, workers: int, ranks_per_node: int) -> None:
    if form == HUGGING_FACE:
        from toolkit.runtime import weights

        found = weights.hugging_face(source, made, dtype)
        what = "adapters" if found["adapters"] else "weights"
        click.echo(f"{found['tensors']} tensors of {what}, {found['parameters']:,} parameters in {found['dtype']}")
        return
    from toolkit.runtime import checkpoint, rewrite, universal

    facts: dict[str, Any] = {}
    if (source / checkpoint.MANIFEST).is_file():
        facts = checkpoint.facts(source) | {"made_from": universal.mark(source)}
    if not _sharded(source):
        step = int(facts["step"]) if facts else _trained_steps(source)
        rewrite.convert(source, made, rewrite.UNIVERSAL, step=step)
        checkpoint.commit(made, facts or {"step": step})
        click.echo("from a whole state to a form that any number of ranks at stages 1 to 3 can load")
        return
    facts = facts or {"step": _step(source)}
    found = universal.convert(source, made, workers)
    checkpoint.commit(made, facts)
    for line in _said(source, found, ranks_per_node):
        click.echo(line)


def _said(source: Path, found: dict[str, Any], ranks_per_node: int) -> list[str]:
    from toolkit.estimate.loading import OPTIMIZER_BYTES, elastic_loading_bytes
    from toolkit.runtime import universal
    from toolkit.units import format_bytes

    shard_bytes = sum(path.stat().st_size for path in universal.shards(source)[1])
    needed = elastic_loading_bytes(float(ranks_per_node), shard_bytes / OPTIMIZER_BYTES)
    return [
        f"from ZeRO stage {found['zero_stage']} on {found['ranks']} ranks to a form that any number of ranks at stages"
        f" 1 to 3 can load; {format_bytes(shard_bytes)} of optimizer states, a tensor at a time",
        f"an elastic load of the same would read all of it on every rank: {format_bytes(needed)} of host memory on a"
        f" node of {ranks_per_node}",
        'other programs: "checkpoint": {"load_universal": true} in the DeepSpeed file, and DST to resume from; with'
        " DeepSpeed 0.19.8 at stage 3 they must mend the optimizer's steps and weight decay (docs/checkpoints.md)",
    ]


def _step(source: Path) -> int:
    from toolkit.runtime import universal

    digits = "".join(filter(str.isdigit, universal.tag_of(source)))
    return int(digits) if digits else 0


def _trained_steps(source: Path) -> int:
    """As the Trainer tells; 0 where it does not."""
    try:
        return int(json.loads((source / "trainer_state.json").read_bytes())["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _program(command: str, source: Path, target: Path, force: bool) -> None:
    """The converter of the pretraining program, in a process of its own: it must set up megatron-core before torch."""
    start = [sys.executable, "-m", "recipes.pretrain.convert", command, str(source), "--out", str(target)]
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([*start, *(["--force"] if force else [])], env=os.environ | {"PYTHONPATH": path})
    if done.returncode:
        sys.exit(done.returncode)


def _remove(target: Path) -> None:
    from toolkit.runtime import checkpoint

    if target.is_dir():
        checkpoint.discard(target)
    else:
        target.unlink()
