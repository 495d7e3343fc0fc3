"""``--trace`` of the pretraining program: hooks on the library's optimizer and on the sequences that are read."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from megatron.core.utils import unwrap_model

from recipes import trace
from recipes.pretrain import checkpoints, forward, initialise
from recipes.pretrain.data import Data
from recipes.pretrain.model import Built
from recipes.trace import Named, Trace

# of the library's configuration: what changes the arithmetic, and not the layout
SETTINGS = (
    *("activation_func", "gated_linear_unit", "normalization", "layernorm_epsilon", "add_bias_linear", "add_qkv_bias"),
    *("softmax_scale", "window_size", "attention_softmax_in_fp32", "apply_residual_connection_post_layernorm"),
    *("params_dtype", "hidden_dropout", "attention_dropout", "calculate_per_token_loss", "init_method_std"),
    *("moe_router_topk", "moe_router_dtype", "moe_router_score_function", "moe_router_load_balancing_type"),
    *("moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_expert_capacity_factor", "moe_token_drop_policy"),
    *("moe_router_pre_softmax", "moe_router_topk_scaling_factor", "moe_router_enable_expert_bias"),
)


def attach(built: Built, text: Data, vocab_size: int, folder: Path, start: int = 0) -> Data:
    """Write a trace of the steps that this optimizer will take; returns the data that tell what is read of them."""
    chunks = unwrap_model(built.chunks)
    tied = any(getattr(chunk, "share_embeddings_and_output_weights", False) for chunk in chunks)
    facts = {
        "place": {
            "tp": parallel_state.get_tensor_model_parallel_rank(),
            "pp": parallel_state.get_pipeline_model_parallel_rank(),
            "cp": parallel_state.get_context_parallel_rank(),
            "dp": parallel_state.get_data_parallel_rank(),
            "ep": parallel_state.get_expert_model_parallel_rank(),
        },
        "draws": {"outside": trace.next_draws(), "inside": _draws_inside()},
        "batch_norms": [name for chunk in chunks for name in trace.batch_norms(chunk)],
        "dropouts": [name for chunk in chunks for name in trace.dropouts(chunk)],
        "tied": [["embedding.word_embeddings.weight", "output_layer.weight"]] if tied else [],
        "settings": _settings(chunks[0]),
    }
    written = Trace(folder, torch.distributed.get_rank(), facts)
    written.step(start, _weights(built, vocab_size), _buffers(chunks))
    update, counter = built.optimizer.step, itertools.count(start + 1)

    def step(*positional: Any, **keywords: Any) -> Any:
        written.gradients(_gradients(built, vocab_size))
        result = update(*positional, **keywords)
        checkpoints.whole_parameters(built)
        written.evaluating = not chunks[0].training
        written.step(next(counter), _weights(built, vocab_size), _buffers(chunks))
        return result

    built.optimizer.step = step
    token_losses = forward.token_losses

    def recorded(losses: torch.Tensor, mask: torch.Tensor) -> Any:
        result = token_losses(losses, mask)
        if torch.is_grad_enabled():
            total = (losses.detach().double().view(-1) * mask.reshape(-1)).sum()
            written.micro.append((float(total), int(mask.sum())))
        return result

    forward.token_losses = recorded
    return text._replace(train=_Read(text.train, written, len(built.chunks)))


class _Read:
    """Sequences that note which of them a rank asks for; with several model chunks each asks for all of them."""

    def __init__(self, sequences: Any, written: Trace, chunks: int) -> None:
        self._sequences, self._written, self._chunks, self._asked = sequences, written, chunks, 0
        self.sequence_length = sequences.sequence_length

    def __len__(self) -> int:
        return len(self._sequences)

    def sample(self, index: int) -> np.ndarray:
        """The same tokens."""
        tokens: np.ndarray = self._sequences.sample(index)
        known = {each.partition(" ")[0] for each in self._written.samples} if self._chunks > 1 else set()
        if str(index) not in known:
            self._written.samples.append(f"{index} {trace.digest(np.asarray(tokens, np.int64))}")
        return tokens


def _settings(chunk: Any) -> dict[str, Any]:
    values = {name: getattr(chunk.config, name, None) for name in SETTINGS}
    plain = {name: getattr(value, "__name__", None) or str(value) for name, value in values.items()}
    rotary = getattr(chunk, "rotary_pos_emb", None)  # its frequencies are no buffer
    if rotary is not None and getattr(rotary, "inv_freq", None) is not None:
        plain["rotary frequencies"] = trace.digest(rotary.inv_freq.detach().float().cpu().numpy())
    return plain


def _buffers(chunks: list[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for chunk in chunks:
        for name, tensor in trace.buffers(chunk):
            yield initialise.global_name(name, chunk, chunk.config), tensor


def _draws_inside() -> list[float]:
    """What dropout would draw next in a tensor-parallel region; the state stays as it was."""
    tracker = get_cuda_rng_tracker()
    states = tracker.get_states()
    with tracker.fork():
        drawn = trace.next_draws()
    tracker.set_states(states)
    return drawn


def _parameters(built: Built) -> Iterator[tuple[str, str, Any, Any, bool]]:
    for chunk in unwrap_model(built.chunks):
        for name, parameter in chunk.named_parameters():
            if initialise.is_expert(name):
                first = parallel_state.get_expert_data_parallel_rank() == 0
            else:
                first = parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
            whole = initialise.global_name(name, chunk, chunk.config)
            yield whole, name, parameter, chunk.config, first and initialise.tensor_group(name)[0] == 0


def _weights(built: Built, vocab_size: int) -> Iterator[Named]:
    for whole, name, parameter, config, first in _parameters(built):
        yield whole, initialise.gather(name, parameter, config, vocab_size), first


def _gradients(built: Built, vocab_size: int) -> Iterator[Named]:
    """Reduced gradients: with the distributed optimizer each data-parallel rank has a share of every bucket."""
    shares: dict[Any, torch.Tensor] = {}
    for chunk in built.chunks:
        groups = [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]
        owner = {id(bucket): group for group in groups for bucket in group.buckets}
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            whole = [_bucket(bucket, owner[id(bucket)]) for bucket in buffer.buckets]
            for parameter, (start, end, number) in buffer.param_index_map.items():
                offset = buffer.buckets[number].offset
                shares[parameter] = whole[number][start - offset : end - offset].view(parameter.shape)
    for whole_name, name, parameter, config, first in _parameters(built):
        if parameter in shares:
            stand_in = types.SimpleNamespace(data=shares[parameter])
            for key in ("tensor_model_parallel", "partition_dim"):
                if hasattr(parameter, key):
                    setattr(stand_in, key, getattr(parameter, key))
            yield whole_name, initialise.gather(name, stand_in, config, vocab_size), first


def _bucket(bucket: Any, owner: Any) -> torch.Tensor:
    data: torch.Tensor = bucket.grad_data
    if not owner.ddp_config.use_distributed_optimizer:
        return data
    group = owner.intra_distributed_optimizer_instance_group
    size = data.numel() // group.size()
    own = data[group.rank() * size : (group.rank() + 1) * size].clone()
    shards = [torch.empty_like(own) for _ in range(group.size())]
    torch.distributed.all_gather(shards, own, group=group)
    return torch.cat(shards)
