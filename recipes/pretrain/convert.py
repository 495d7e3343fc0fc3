"""Hugging Face checkpoints to megatron-core's and back, on CPUs.

    python -m recipes.pretrain.convert to-megatron HF_FOLDER --out FOLDER
    python -m recipes.pretrain.convert to-hf CHECKPOINT --out HF_FOLDER

``to-megatron`` writes a distributed checkpoint of the weights, which any layout can load. ``to-hf`` reads such a
folder, or a ``checkpoint-N`` of a training run (whose ``plan.json`` lies beside it). The weights are in memory once,
and those of gate and up, which the library splits, once more while it writes or reads its checkpoint (it keeps the
layers of a kind as one tensor, which it reads as a whole); Hugging Face files are read and written tensor by tensor.
Of 485 MiB, ``to-hf`` takes 790 MiB, and took 1,010 while it kept a file. A model that is too large for that is
converted by several processes: ``torchrun --nproc-per-node 8 -m recipes.pretrain.convert ... --tp 2 --pp 4``, each of
which holds its part only. Nothing is overwritten without ``--force``. A source with a manifest is verified first, and
what ``to-megatron`` writes has one.

The training program needs neither: it starts from a Hugging Face folder (``init = "pretrained"``) and ends with one.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

from recipes import program, ranks
from recipes.pretrain.hugging_face import architecture, bare, place
from recipes.pretrain.hugging_face.bare import build, core_of
from recipes.pretrain.hugging_face.described import NAMES, described
from toolkit.errors import Problems, ToolkitError
from toolkit.runtime import checkpoint, found, reshard, together
from toolkit.strategy import Strategy

TOKENIZER = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "added_tokens.json", "*.jinja")
BESIDE = (*TOKENIZER, "generation_config.json")
AXES = {
    "tp": "tensor parallel size: how many processes share each layer",
    "pp": "pipeline parallel size: how many processes share the layers among them",
    "ep": "expert parallel size: how many processes share the experts of a layer",
}
SEVERAL = (
    "Large models by several processes: torchrun --nproc-per-node 2 -m recipes.pretrain.convert to-megatron HF_FOLDER"
    " --out FOLDER --ep 2. The layout is that of the conversion alone: the result is the same on any."
)


def main(argv: list[str] | None = None) -> int:
    """Run the program; problems with the inputs go to stderr as sentences."""
    parser = argparse.ArgumentParser(
        prog="recipes.pretrain.convert", description=__doc__.split("\n")[0], epilog=SEVERAL
    )
    commands = parser.add_subparsers(required=True)
    for name, command, said, source in (
        (
            "to-megatron",
            to_megatron,
            "write a Hugging Face model as a distributed checkpoint of its weights, which any layout can load",
            "a Hugging Face folder: config.json and safetensors",
        ),
        (
            "to-hf",
            to_hf,
            "write the weights of a distributed checkpoint as a folder for from_pretrained",
            "a folder of to-megatron, or checkpoint-N of a training run",
        ),
    ):
        one = commands.add_parser(name, help=said, description=f"{said[0].upper()}{said[1:]}.", epilog=SEVERAL)
        one.set_defaults(command=command)
        one.add_argument("source", type=Path, help=source)
        one.add_argument("--out", type=Path, required=True, help="the folder to write")
        one.add_argument("--force", action="store_true", help="replace --out where it is there already")
        for axis, what in AXES.items():
            one.add_argument(f"--{axis}", type=int, default=1, metavar="N", help=f"{what} (1); with torchrun")
    return program.told(_run, parser.parse_args(argv))


def _run(options: argparse.Namespace) -> int:
    _require_place(options.source, options.out, options.force)
    rank, world_size = program.place()
    layout = _layout(options, world_size)
    from recipes.pretrain import machine

    machine.on_cpu()  # before anything imports megatron-core
    try:
        if world_size > 1:
            bare.join()
        if not found.require_sound(options.source, together.group()) and options.command is to_hf and rank == 0:
            note = f"note: {options.source} has no manifest: nobody knows whether it is whole"
            print(note, file=sys.stderr, flush=True)
        options.command(options, layout)
    except OSError as error:
        raise place.unwritable(options.out, error) from error
    finally:
        ranks.leave()
    return 0


def _require_place(source: Path, out: Path, force: bool) -> None:
    """Raise ToolkitError where the result would take the place of something that is wanted, or can have none."""
    try:
        read = source.is_dir()
        there, folder = out.exists(), out.is_dir()
        of_source = there and source.resolve().is_relative_to(out.resolve())
    except OSError as error:
        raise ToolkitError(f"cannot look at {out}: {error.strerror}", remedy="give another --out") from error
    if not read:
        what = "is not a folder" if source.exists() else "does not exist"
        raise ToolkitError(f"{source} {what}", remedy="give the folder to convert")
    if of_source:
        raise ToolkitError(f"--out {out} is, or holds, what is converted", remedy="give another --out")
    if there and not folder:
        raise ToolkitError(f"{out} is a file", remedy="give another --out: a folder is written")
    if there and not force:
        raise ToolkitError(f"{out} exists", remedy="give another --out, or --force")
    place.require_place(out)


def to_megatron(options: argparse.Namespace, layout: Strategy) -> None:
    """Read a Hugging Face folder and write a distributed checkpoint."""
    from recipes.pretrain.hugging_face.files import Weights

    config = architecture.read_config(options.source)
    spec = architecture.spec_of(config, str(options.source))
    weights = Weights(options.source)
    from recipes.pretrain.hugging_face import transfer

    core = core_of(config, spec, NAMES[str(weights.dtype())], layout)
    chunks, _ = build(core, spec, transfer.start_from(weights, spec.model_type, spec.vocab_size))
    from megatron.core import dist_checkpointing

    from recipes.pretrain import checkpoints

    rank, out = _rank(), options.out
    state, strategy = checkpoints.weights_state(chunks), checkpoints.save_strategy()
    with place.fresh(out, rank) as temporary:
        # of what fails its writer logs a line before it raises
        logging.getLogger("megatron.core.dist_checkpointing.strategies.filesystem_async").setLevel(logging.CRITICAL)
        place.everywhere(out, lambda: dist_checkpointing.save(state, str(temporary), strategy, None), joint=True)

        def describe() -> None:
            _copy(options.source, temporary, ("config.json", *BESIDE))
            sections = {name: getattr(core, name) for name in ("megatron_core", "transformer", "model")}
            (temporary / "megatron_core.json").write_text(json.dumps(sections, indent=2) + "\n")

        ranks.on_first_rank(lambda: place.told(out, describe), rank)
        checkpoint.commit(temporary, _facts(layout), together.group())
        ranks.on_first_rank(lambda: place.told(out, lambda: place.complete(out, temporary)), rank)
    if rank == 0:
        print(f"{out}: {spec.num_hidden_layers} layers, {core.transformer['params_dtype']}", flush=True)


def _facts(layout: Strategy) -> dict[str, Any]:
    """For its manifest: weights that no step of a run has made, so there is no contract, optimizer or position."""
    return {
        "step": 0,
        "framework": layout.framework,
        "world_size": layout.tp * layout.pp * layout.dp,
        "degrees": {axis: getattr(layout, axis) for axis in reshard.AXES},
        "weights_only": True,
    }


def to_hf(options: argparse.Namespace, layout: Strategy) -> None:
    """Read a distributed checkpoint and write a Hugging Face folder."""
    source = options.source
    if not (source / ".metadata").is_file():
        raise ToolkitError(
            f"{source} is not a distributed checkpoint of megatron-core",
            remedy="give a folder of to-megatron, or the checkpoint-N of a training run",
        )
    config, spec, precision, beside = described(source)
    core = core_of(config, spec, precision, layout)
    from megatron.core import dist_checkpointing

    from recipes.pretrain import checkpoints
    from recipes.pretrain.hugging_face import transfer

    chunks, transformer = build(core, spec, lambda chunks, config: None)
    try:
        state = dist_checkpointing.load(checkpoints.weights_state(chunks), str(source), strict="assume_ok_unexpected")
        for key, chunk in zip(checkpoints.keys(chunks), chunks, strict=True):
            chunk.load_state_dict(state.pop(key))
    except (KeyboardInterrupt, SystemExit):
        raise
    # the library raises many kinds: of another model's shapes, torn files, missing tensors; torch's is no Exception
    except BaseException as error:
        raise ToolkitError(
            f"{source} cannot be read as a {spec.model_type} of {spec.num_hidden_layers} layers,"
            f" {spec.hidden_size} wide: {_short(error)}",
            remedy="give a whole checkpoint of the model that its config.json or plan.json describes",
        ) from error
    transfer.export(
        chunks, transformer, config, spec.vocab_size, options.out, lambda folder: _copy(beside, folder, BESIDE)
    )
    if _rank() == 0:
        print(f"{options.out}: {spec.num_hidden_layers} layers, {precision}", flush=True)


def _short(error: BaseException) -> str:
    """What is wrong, without the stacks that torch puts into the text of what failed on each rank."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        return "; ".join(f"rank {rank}: {_short(inner)}" for rank, (inner, _) in failures.items())
    return " ".join(str(error).split())[:600] or type(error).__name__


def _layout(options: argparse.Namespace, world_size: int) -> Strategy:
    with Problems() as problems:
        for axis in ("tp", "pp", "ep"):
            if getattr(options, axis) < 1:
                problems.add(f"--{axis} is {getattr(options, axis)}", "it must be 1 or more")
    shards = options.tp * options.pp
    dp = world_size // shards
    if dp * shards != world_size or (dp * options.tp) % options.ep:
        raise ToolkitError(
            f"{world_size} {'process is' if world_size == 1 else 'processes are'} no multiple of"
            f" tp {options.tp} x pp {options.pp} or of pp {options.pp} x ep {options.ep}",
            remedy=f"torchrun --nproc-per-node {options.pp * options.tp * options.ep} -m recipes.pretrain.convert ...",
        )
    return Strategy(
        framework="megatron",
        tp=options.tp,
        pp=options.pp,
        ep=options.ep,
        dp=dp,
        sequence_parallel=int(options.tp > 1),
    )


def _rank() -> int:
    import torch

    return int(torch.distributed.get_rank())


def _copy(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        for path in source.glob(pattern):
            shutil.copy(path, target / path.name)


if __name__ == "__main__":
    program.leave(main())
