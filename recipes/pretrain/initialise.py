"""Initial weights that depend on the seed and on each parameter's name, and on nothing else.

megatron-core draws each rank's shards from that rank's random state, so another tensor- or pipeline-parallel
size starts from other weights. Here every parameter's whole tensor is drawn from a generator seeded by its
global name and each rank keeps its shard: moving a run to another layout leaves step 0 as it was. The
largest parameter is whole in memory for a moment (the embedding: 2.1 GB in fp32 for 128k x 4k).

Standard deviations are the library's: ``init_method_std`` and, for the projections back into the residual
stream, ``init_method_std / sqrt(2 L)``; norms 1, biases 0. How far the vocabulary is padded depends on the
tensor-parallel size: the rows beyond the model's own are zero, and the loss never sees them
(:func:`hide_padding`).
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state

INTO_RESIDUAL = ("linear_proj.weight", "linear_fc2")
VOCABULARY = ("word_embeddings.weight", "output_layer.weight")


# from a parameter's global name, its whole shape (vocabulary unpadded) and its device to its values
Whole = Callable[[str, list[int], torch.device], torch.Tensor]


def initialise(model: Any, config: Any, seed: int, vocab_size: int) -> None:
    """Draw every parameter of one model chunk, before it is wrapped; ``vocab_size`` is the unpadded one."""
    fill(model, config, vocab_size, lambda name, shape, device: _draw(name, shape, config, seed, device))


def fill(model: Any, config: Any, vocab_size: int, whole: Whole) -> None:
    """Give every parameter of one model chunk this rank's shard of ``whole(name, shape, device)``."""
    for name, parameter in model.named_parameters():
        group_rank, group_size = tensor_group(name)
        sharded, dimension = partition(parameter)
        shape = list(parameter.shape)
        if sharded:
            shape[dimension] *= group_size
        rows = shape[0]
        if name.endswith(VOCABULARY):
            shape[0] = vocab_size
        full = whole(global_name(name, model, config), shape, parameter.device)
        full = torch.nn.functional.pad(full, (0, 0) * (full.dim() - 1) + (0, rows - full.size(0)))
        if sharded:
            halves = full.chunk(2, dimension) if is_pair(name, config) else (full,)
            full = torch.cat([half.chunk(group_size, dimension)[group_rank] for half in halves], dimension)
        parameter.data.copy_(full)


def gather(name: str, parameter: Any, config: Any, vocab_size: int) -> torch.Tensor:
    """The whole parameter again, for all ranks of its tensor-parallel group to call; the reverse of :func:`fill`."""
    sharded, dimension = partition(parameter)
    full = parameter.data
    group = tensor_group_of(name)
    if sharded and group.size() > 1:
        shards = [torch.empty_like(full) for _ in range(group.size())]
        torch.distributed.all_gather(shards, full.contiguous(), group=group)
        if is_pair(name, config):
            halves = zip(*(shard.chunk(2, dimension) for shard in shards), strict=True)
            shards = [part for half in halves for part in half]
        full = torch.cat(shards, dimension)
    return full[:vocab_size] if name.endswith(VOCABULARY) else full


def hide_padding(model: Any, vocab_size: int) -> None:
    """Set the logits of padding tokens to minus infinity, so that they have no part in the loss.

    Megatron-LM lets them take part; the loss then depends on the padding, and so on the tensor-parallel size.
    """
    first = vocab_size - parallel_state.get_tensor_model_parallel_rank() * model.output_layer.output_size_per_partition
    if first >= model.output_layer.output_size_per_partition:
        return

    def mask(_module: Any, _inputs: Any, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        output[0][..., max(0, first) :] = float("-inf")
        return output

    model.output_layer.register_forward_hook(mask)


def is_expert(name: str) -> bool:
    """Whether a parameter belongs to routed experts, whose ranks are other groups."""
    return ".experts." in f".{name}"


def is_pair(name: str, config: Any) -> bool:
    """Whether a parameter is gate and up in one tensor: each of the two is split on its own."""
    return "linear_fc1." in name and config.gated_linear_unit


def partition(parameter: Any) -> tuple[bool, int]:
    """Whether tensor parallelism splits this parameter, and along which dimension."""
    return getattr(parameter, "tensor_model_parallel", False), getattr(parameter, "partition_dim", -1)


def tensor_group_of(name: str) -> Any:
    """The tensor-parallel group that holds the shards of this parameter."""
    expert = is_expert(name)
    return (
        parallel_state.get_expert_tensor_parallel_group()
        if expert
        else parallel_state.get_tensor_model_parallel_group()
    )


def tensor_group(name: str) -> tuple[int, int]:
    """Rank in that group, and its size."""
    if is_expert(name):
        return (
            parallel_state.get_expert_tensor_parallel_rank(),
            parallel_state.get_expert_tensor_parallel_world_size(),
        )
    return parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()


def global_name(name: str, model: Any, config: Any) -> str:
    """The parameter's name in the whole model: global layer and expert numbers, and one name for tied embeddings."""
    parts = name.split(".")
    if "layers" in parts:
        place = parts.index("layers") + 1
        parts[place] = str(model.get_submodule(".".join(parts[: place + 1])).layer_number - 1)
    if "experts" in parts:  # local numbers, in a list of modules or, grouped by Transformer Engine, in weight7
        place = parts.index("local_experts") + 1 if "local_experts" in parts else len(parts) - 1
        kind, local = re.fullmatch(r"(\D*)(\d+)", parts[place]).groups()  # type: ignore[union-attr]
        per_rank = config.num_moe_experts // parallel_state.get_expert_model_parallel_world_size()
        parts[place] = f"{kind}{int(local) + per_rank * parallel_state.get_expert_model_parallel_rank()}"
    if getattr(model, "share_embeddings_and_output_weights", False) and parts[-2:] == ["output_layer", "weight"]:
        parts[-2:] = ["embedding", "word_embeddings", "weight"]
    return ".".join(parts)


def _draw(name: str, shape: list[int], config: Any, seed: int, device: torch.device) -> torch.Tensor:
    if re.search(r"bias\d*$", name):
        return torch.zeros(shape, device=device)
    if re.search(r"norm(_weight|\.weight)$", name):
        return torch.ones(shape, device=device)
    residual = any(part in name for part in INTO_RESIDUAL)
    deviation = config.init_method_std / (math.sqrt(2.0 * config.num_layers) if residual else 1.0)
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return torch.randn(shape, generator=generator, device=device) * deviation
