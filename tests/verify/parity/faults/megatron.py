"""The pretraining program: tensor, pipeline and context parallelism."""

from __future__ import annotations

from typing import Any

from tests.verify.parity.faults import RANK, RANKS


def seed_by_rank() -> None:
    """Weights are drawn from seed + rank."""
    from recipes.pretrain import model

    draw = model.initialise
    model.initialise = lambda chunk, config, seed, vocabulary: draw(chunk, config, seed + RANK, vocabulary)


def drawn_for_the_shard() -> None:
    """The spread of weights follows from the width of a shard."""
    from recipes.pretrain import model

    draw = model.initialise

    def wider(chunk: Any, *more: Any) -> None:
        draw(chunk, *more)
        for parameter in chunk.parameters():
            if getattr(parameter, "tensor_model_parallel", False):
                parameter.data.mul_(RANKS**0.5)

    model.initialise = wider


def padding_in_the_softmax() -> None:
    """Rows that pad the vocabulary for tensor parallelism take part in the loss."""
    from recipes.pretrain import model

    model.hide_padding = lambda *_: None


def norms_not_marked() -> None:
    """The norms' weights are not marked as sequence parallel."""
    from recipes.pretrain import layers

    create = layers.Norm.__new__

    def unmarked(cls: Any, config: Any, *more: Any, **keywords: Any) -> Any:
        module = create(cls, config, *more, **keywords)
        for parameter in module.parameters():
            parameter.sequence_parallel = False
        return module

    layers.Norm.__new__ = unmarked


def ties_not_summed() -> None:
    """The two copies of a tied embedding keep the gradients of their own stages."""
    import importlib

    # by name: the package has a function of the module's name
    finalize: Any = importlib.import_module("megatron.core.distributed.finalize_model_grads")
    finalize._allreduce_word_embedding_grads = lambda *_, **__: None


def norm_counts_twice() -> None:
    """The gradient norm counts a parameter that every tensor-parallel rank holds once for each of them."""
    import megatron.core.optimizer.optimizer as optimizer

    optimizer.tensor_parallel.param_is_not_tensor_parallel_duplicate = lambda *_, **__: True


def same_dropout_inside() -> None:
    """The random state of tensor-parallel regions does not depend on the rank."""
    from recipes.pretrain import random_states

    seed_all = random_states.tensor_parallel.model_parallel_cuda_manual_seed
    random_states.tensor_parallel.model_parallel_cuda_manual_seed = lambda seed, **keywords: seed_all(
        seed, **keywords | {"tp_rank": 0, "ep_rank": 0, "etp_rank": 0}
    )


def wrong_slices() -> None:
    """Context-parallel ranks take contiguous slices, the attention believes in zigzag ones."""
    from recipes.pretrain import forward

    forward.context_slice = lambda batch, ranks, rank: {
        name: each.chunk(ranks, 1)[rank] for name, each in batch.items()
    }


def ties_summed_twice() -> None:
    """The gradients of a tied embedding are summed over first and last stage, and then once more."""
    import importlib

    finalize: Any = importlib.import_module("megatron.core.distributed.finalize_model_grads")
    right = finalize._allreduce_word_embedding_grads

    def twice(*positional: Any, **keywords: Any) -> None:
        right(*positional, **keywords)
        right(*positional, **keywords)

    finalize._allreduce_word_embedding_grads = twice


def norm_of_own_stage() -> None:
    """Each pipeline stage clips by the norm of its own gradients."""
    from megatron.core import parallel_state
    from megatron.core.optimizer.optimizer import MegatronOptimizer

    MegatronOptimizer.get_grad_stats_parallel_group = lambda self: parallel_state.get_tensor_model_parallel_group()


def biases_not_marked() -> None:
    """Biases of row-parallel layers are not marked as sequence parallel."""
    from megatron.core.tensor_parallel import layers

    create = layers.RowParallelLinear.__init__

    def unmarked(self: Any, *positional: Any, **keywords: Any) -> None:
        create(self, *positional, **keywords)
        if self.bias is not None:
            self.bias.sequence_parallel = False

    layers.RowParallelLinear.__init__ = unmarked


def other_dropout_outside() -> None:
    """Ranks of a tensor-parallel group draw different numbers where they hold the same activations."""
    import torch

    from recipes.pretrain import random_states

    seed_all = random_states.tensor_parallel.model_parallel_cuda_manual_seed

    def apart(seed: int, **keywords: Any) -> None:
        seed_all(seed, **keywords)
        torch.manual_seed(seed + RANK)

    random_states.tensor_parallel.model_parallel_cuda_manual_seed = apart


def positions_of_the_slice() -> None:
    """A context-parallel rank counts positions from the start of its own slice."""
    from megatron.core.models.common.embeddings import rotary_pos_embedding as rotary

    rotary.get_pos_emb_on_this_cp_rank = lambda embedding, dimension, group: embedding.narrow(
        dimension, 0, embedding.size(dimension) // group.size()
    )


def no_reduction_over_context() -> None:
    """Gradients are reduced over data-parallel ranks, of which there is one, and not over context-parallel ones."""
    from recipes.pretrain import model

    create = model.DistributedDataParallel.__init__

    def local(self: Any, *positional: Any, **keywords: Any) -> None:
        create(self, *positional, **keywords)
        for group in self.bucket_groups:
            group.start_grad_sync = group.finish_grad_sync = lambda *_, **__: None

    model.DistributedDataParallel.__init__ = local
