"""Weights from a Hugging Face folder into megatron-core model chunks, and from chunks into a folder.

Both ways go parameter by parameter. Reading, each rank asks the mapped files for the tensors of its own
parameters alone, joins one parameter and keeps its shard. Writing, the tensor-parallel ranks of a parameter
gather it, and one rank for each pipeline stage and each group of experts writes files of its own. So no process
ever holds more than its shards, one parameter, and one file that is being filled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state

from recipes import ranks
from recipes.pretrain.hugging_face import place
from recipes.pretrain.hugging_face.files import Weights, Writer, finish
from recipes.pretrain.hugging_face.names import NOT_WEIGHTS, Pieces, pieces
from recipes.pretrain.initialise import Whole, fill, gather, global_name, is_expert
from recipes.pretrain.model import Start
from toolkit.errors import Problems, ToolkitError

SHOWN = 8  # tensors named in a message


def start_from(weights: Weights, family: str, vocab_size: int) -> Start:
    """What :func:`recipes.pretrain.model.build` takes to begin with these weights; names are checked first."""

    def start(chunks: list[Any], config: Any) -> None:
        check_names(weights, chunks, config, family)
        groups = config.num_query_groups or config.num_attention_heads
        for chunk in chunks:
            fill(chunk, config, vocab_size, reader(weights, family, groups))

    return start


def reader(weights: Weights, family: str, groups: int) -> Whole:
    """What :func:`recipes.pretrain.initialise.fill` asks for whole parameters; ``groups`` key-value heads."""

    def whole(name: str, shape: list[int], device: torch.device) -> torch.Tensor:
        found = pieces(name, family)
        missing = [part for part in found.names if part not in weights.names] if found else []
        if found is None or missing:
            raise ToolkitError(
                f"{weights.folder} has no {', '.join(missing) or 'tensor'} for {name}",
                remedy="give the folder of a model of the planned architecture",
            )
        made = join(found, [weights.read(part) for part in found.names], groups)
        if list(made.shape) != shape:
            raise ToolkitError(
                f"{', '.join(found.names)} make {name} {list(made.shape)}, the model needs {shape}",
                remedy="plan again with --model set to this checkpoint",
            )
        return made

    return whole


def join(found: Pieces, tensors: list[torch.Tensor], groups: int) -> torch.Tensor:
    """One megatron-core parameter of its Hugging Face tensors."""
    if found.how == "whole":
        return tensors[0]
    if found.how == "pair":
        return torch.cat(tensors)
    rest = tensors[0].shape[1:]
    return torch.cat([tensor.view(groups, -1, *rest) for tensor in tensors], 1).reshape(-1, *rest)


def part(found: Pieces, tensor: torch.Tensor, heads: int, groups: int) -> list[torch.Tensor]:
    """The Hugging Face tensors of one megatron-core parameter: the reverse of :func:`join`."""
    if found.how == "whole":
        return [tensor]
    if found.how == "pair":
        return list(tensor.chunk(2))
    rest = tensor.shape[1:]
    width = tensor.size(0) // (heads + 2 * groups)
    per_group = tensor.view(groups, -1, *rest)
    pieces_of_group = per_group.split([heads // groups * width, width, width], 1)
    return [one.reshape(-1, *rest) for one in pieces_of_group]


def parameters(chunks: list[Any], config: Any) -> list[tuple[str, str, Any]]:
    """Local name, global name and parameter of everything on this rank, tied copies left out."""
    found = []
    for chunk in chunks:
        shared = getattr(chunk, "share_embeddings_and_output_weights", False)
        for name, parameter in chunk.named_parameters():
            if not (shared and name == "output_layer.weight"):  # the last stage's copy of the embedding
                found.append((name, global_name(name, chunk, config), parameter))
    return found


def check_names(weights: Weights, chunks: list[Any], config: Any, family: str) -> None:
    """Raise ToolkitError, on every rank, for tensors that the model lacks or the folder lacks; names them."""
    mine: set[str] = set()
    unmapped: set[str] = set()
    for _, name, _ in parameters(chunks, config):
        found = pieces(name, family)
        mine |= set(found.names) if found else set()
        unmapped |= set() if found else {name}
    wanted = set().union(*_everywhere(mine))
    unmapped = set().union(*_everywhere(unmapped))
    spare = {name for name in weights.names - wanted if not NOT_WEIGHTS.search(name)}
    if "lm_head.weight" in spare and "model.embed_tokens.weight" in wanted:
        tied = any(getattr(chunk, "share_embeddings_and_output_weights", False) for chunk in chunks)
        spare -= {"lm_head.weight"} if any(_everywhere(tied)) else set()  # some folders hold the tied copy too
    with Problems() as problems:
        for names, what, remedy in (
            (unmapped, "parameters of the model have no tensor in a Hugging Face model", "plan another architecture"),
            (wanted - weights.names, f"tensors are not in {weights.folder}", "download the folder again"),
            (spare, f"tensors of {weights.folder} have no place in the model", "plan the model that they belong to"),
        ):
            if names:
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                problems.add(f"{len(names)} {what}: {', '.join(sorted(names)[:SHOWN])}{more}", remedy)


def export(
    chunks: list[Any],
    config: Any,
    settings: dict[str, Any],
    vocab_size: int,
    folder: Path,
    others: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a folder that ``from_pretrained`` reads; all ranks call it, and all see what is wrong.

    ``settings`` is the ``config.json``; ``others`` adds files (the tokenizer's) on rank 0. The folder appears
    when it is complete.
    """
    rank = torch.distributed.get_rank()
    family = settings["model_type"]
    unmapped = set().union(
        *_everywhere({name for _, name, _ in parameters(chunks, config) if pieces(name, family) is None})
    )
    if unmapped:
        raise ToolkitError(
            f"a {family} of Hugging Face has no tensor for {', '.join(sorted(unmapped)[:SHOWN])}",
            remedy="the checkpoint of megatron-core itself is whole",
        )
    with place.fresh(folder, rank) as temporary:
        written = _write(chunks, config, family, vocab_size, Writer(temporary, rank), folder)

        def complete() -> None:
            finish(temporary, written)
            dtype = str(next(chunks[0].parameters()).dtype).removeprefix("torch.")
            kept = {key: value for key, value in settings.items() if key not in ("torch_dtype", "dtype")}
            (temporary / "config.json").write_text(json.dumps(kept | {"dtype": dtype}, indent=2) + "\n")
            others(temporary)
            place.complete(folder, temporary)

        ranks.on_first_rank(lambda: place.told(folder, complete), rank)


def _write(
    chunks: list[Any], config: Any, family: str, vocab_size: int, writer: Writer, folder: Path
) -> list[tuple[str, list[str], int]]:
    """Every rank its tensors; the files of all. One that cannot write goes on gathering, or the others would wait."""
    heads, groups = config.num_attention_heads, config.num_query_groups or config.num_attention_heads
    failed: list[OSError] = []

    def add(target: str, tensor: torch.Tensor) -> None:
        if not failed:
            try:
                writer.add(target, tensor)
            except OSError as error:
                failed.append(error)
                writer.abandon()

    for local, name, parameter in parameters(chunks, config):
        if not _first_replica(local):
            continue
        full = gather(local, parameter, config, vocab_size)
        if not _writes(local):
            continue
        found = pieces(name, family)
        assert found is not None  # refused above
        for target, tensor in zip(found.names, part(found, full, heads, groups), strict=True):
            add(target, tensor)

    def flush() -> None:
        if failed:
            raise failed[0]
        try:
            writer.flush()
        except OSError:
            writer.abandon()
            raise

    place.everywhere(folder, flush)
    return [one for written in _everywhere(writer.written) for one in written]


def _everywhere(value: Any) -> list[Any]:
    """The value of every rank, in their order."""
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _first_replica(name: str) -> bool:
    """Whether this rank is in the one tensor-parallel group that hands this parameter on."""
    if is_expert(name):
        return bool(parallel_state.get_expert_data_parallel_rank() == 0)
    return bool(parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0)


def _writes(name: str) -> bool:
    if is_expert(name):
        return bool(parallel_state.get_expert_tensor_parallel_rank() == 0)
    return bool(parallel_state.get_tensor_model_parallel_rank() == 0)
