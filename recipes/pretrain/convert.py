"""Hugging Face checkpoints to megatron-core's and back, on CPUs.

    python -m recipes.pretrain.convert to-megatron HF_FOLDER --out FOLDER
    python -m recipes.pretrain.convert to-hf CHECKPOINT --out HF_FOLDER

``to-megatron`` writes a distributed checkpoint of the weights, which any layout can load. ``to-hf`` reads such a
folder, or a ``checkpoint-N`` of a training run (whose ``plan.json`` lies beside it). The weights are in memory once,
and those of gate and up, which the library splits, once more while it writes or reads its checkpoint (it keeps the
layers of a kind as one tensor, which it reads as a whole); Hugging Face files are read and written tensor by tensor.
Of 485 MiB, ``to-hf`` takes 790 MiB, and took 1,010 while it kept a file. A model that is too large for that is
converted by several processes: ``torchrun --nproc-per-node 8 -m recipes.pretrain.convert ... --tp 2 --pp 4``, each of
which holds its part only. Nothing is overwritten without ``--force``.

The training program needs neither: it starts from a Hugging Face folder (``init = "pretrained"``) and ends with one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from recipes import program, ranks
from recipes.pretrain import validity
from recipes.pretrain.config import CoreConfig, Training
from recipes.pretrain.hugging_face import architecture
from recipes.pretrain.hugging_face.described import NAMES, described
from toolkit.errors import Problems, ToolkitError
from toolkit.model import ModelSpec
from toolkit.registry.clusters import load_cluster
from toolkit.strategy import Strategy

TOKENIZER = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "added_tokens.json", "*.jinja")
BESIDE = (*TOKENIZER, "generation_config.json")


def main(argv: list[str] | None = None) -> int:
    """Run the program; problems with the inputs go to stderr as sentences."""
    parser = argparse.ArgumentParser(prog="recipes.pretrain.convert", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    for name, command, source in (
        ("to-megatron", to_megatron, "a Hugging Face folder: config.json and safetensors"),
        ("to-hf", to_hf, "a folder of to-megatron, or checkpoint-N of a training run"),
    ):
        one = commands.add_parser(name)
        one.set_defaults(command=command)
        one.add_argument("source", type=Path, help=source)
        one.add_argument("--out", type=Path, required=True, help="the folder to write")
        one.add_argument("--force", action="store_true", help="replace the folder")
        for axis in ("tp", "pp", "ep"):
            one.add_argument(f"--{axis}", type=int, default=1, help="parts per model, with torchrun (default 1)")
    return program.told(_run, parser.parse_args(argv))


def _run(options: argparse.Namespace) -> int:
    _require_place(options.source, options.out, options.force)
    _, world_size = program.place()
    layout = _layout(options, world_size)
    from recipes.pretrain import machine

    machine.on_cpu()  # before anything imports megatron-core
    try:
        options.command(options, layout)
    except OSError as error:
        raise ToolkitError(
            f"cannot write {options.out}: {error.strerror or error} ({error.filename})",
            remedy="make room, or choose another --out; nothing has been replaced",
        ) from error
    finally:
        ranks.leave()
    return 0


def _require_place(source: Path, out: Path, force: bool) -> None:
    """Raise ToolkitError where the result would take the place of something that is wanted."""
    try:
        there, folder = out.exists(), out.is_dir()
        of_source = there and source.resolve().is_relative_to(out.resolve())
    except OSError as error:
        raise ToolkitError(f"cannot look at {out}: {error.strerror}", remedy="give another --out") from error
    if of_source:
        raise ToolkitError(f"--out {out} is, or holds, what is converted", remedy="give another --out")
    if there and not folder:
        raise ToolkitError(f"{out} is a file", remedy="give another --out: a folder is written")
    if there and not force:
        raise ToolkitError(f"{out} exists", remedy="give another --out, or --force")


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
    temporary = out.with_name(f".{out.name}.incomplete")
    ranks.on_first_rank(lambda: transfer.empty(temporary), rank)
    dist_checkpointing.save(checkpoints.weights_state(chunks), str(temporary), checkpoints.save_strategy(), None)
    ranks.barrier()

    def complete() -> None:
        _copy(options.source, temporary, ("config.json", *BESIDE))
        sections = {name: getattr(core, name) for name in ("megatron_core", "transformer", "model")}
        (temporary / "megatron_core.json").write_text(json.dumps(sections, indent=2) + "\n")
        shutil.rmtree(out, ignore_errors=True)
        temporary.rename(out)
        print(f"{out}: {spec.num_hidden_layers} layers, {core.transformer['params_dtype']}", flush=True)

    ranks.on_first_rank(complete, rank)


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
    except Exception as error:  # the library raises many kinds: of another model's shapes, torn files, missing tensors
        raise ToolkitError(
            f"{source} cannot be read as a {spec.model_type} of {spec.num_hidden_layers} layers,"
            f" {spec.hidden_size} wide: {' '.join(str(error).split())[:600] or type(error).__name__}",
            remedy="give a whole checkpoint of the model that its config.json or plan.json describes",
        ) from error
    transfer.export(
        chunks, transformer, config, spec.vocab_size, options.out, lambda folder: _copy(beside, folder, BESIDE)
    )
    if _rank() == 0:
        print(f"{options.out}: {spec.num_hidden_layers} layers, {precision}", flush=True)


def _layout(options: argparse.Namespace, world_size: int) -> Strategy:
    with Problems() as problems:
        for axis in ("tp", "pp", "ep"):
            if getattr(options, axis) < 1:
                problems.add(f"--{axis} is {getattr(options, axis)}", "it must be 1 or more")
    shards = options.tp * options.pp
    dp = world_size // shards
    if dp * shards != world_size or (dp * options.tp) % options.ep:
        raise ToolkitError(
            f"{world_size} processes are no multiple of tp {options.tp} x pp {options.pp}"
            f" or of pp {options.pp} x ep {options.ep}",
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


def core_of(config: dict[str, Any], spec: ModelSpec, dtype: str, layout: Strategy, sequence: int = 0) -> CoreConfig:
    """The megatron file of a checkpoint, without an optimizer; ``sequence`` 0: no text will go through the model."""
    sequence = sequence or layout.tp
    sections = architecture.sections(config, spec, sequence, layout, load_cluster("local-cpu"))
    sizes = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": 1 if spec.is_moe else layout.tp,
    }
    sections["transformer"] |= sizes | {
        "params_dtype": dtype,
        "bf16": dtype == "bf16",
        "fp16": dtype == "fp16",
        "pipeline_dtype": dtype,
        "sequence_parallel": bool(layout.sequence_parallel),
    }
    core = CoreConfig(
        megatron_core="0.16.1",
        **sections,
        parallel=sizes,
        ddp={},
        optimizer={"lr": 0.0},
        training=Training(micro_batch_size=1, global_batch_size=1, sequence_length=sequence),
    )
    with Problems() as problems:
        validity.shapes(problems, core)
        validity.stages(problems, core)
    return core


def build(core: CoreConfig, spec: ModelSpec, start: Any) -> tuple[list[Any], Any]:
    """The bare model over gloo, its initial weights from ``start``, and its configuration."""
    from recipes.pretrain import machine

    found = machine.on_cpu()
    import torch
    from megatron.core import parallel_state, tensor_parallel

    from recipes.pretrain import model

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(found.backend)
    parallel_state.initialize_model_parallel(**core.parallel)
    tensor_parallel.model_parallel_cuda_manual_seed(core.training.seed)
    chunks, config, _ = model.bare(core, found, spec.vocab_size, start)
    return chunks, config


def _rank() -> int:
    import torch

    return int(torch.distributed.get_rank())


def _copy(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        for path in source.glob(pattern):
            shutil.copy(path, target / path.name)


if __name__ == "__main__":
    program.leave(main())
