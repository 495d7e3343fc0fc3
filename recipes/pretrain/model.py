"""The library's objects from the file's sections: configuration, model chunks, wrappers, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

from recipes.pretrain import layers, random_states
from recipes.pretrain.config import CoreConfig
from recipes.pretrain.initialise import hide_padding, initialise
from recipes.pretrain.machine import Machine, transformer_settings
from recipes.pretrain.optimizer import use_group_step_adam

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ACTIVATIONS: dict[str, Any] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda tensor: F.gelu(tensor, approximate="tanh"),
}


def _nothing(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


# recipes.pretrain.initialise draws the weights, alike on every layout. The library must still believe that it
# does: with perform_initialization=False it also leaves its shards unmarked (tensor_parallel/layers.py:137), and
# gradient norms and clipping then count them wrongly, without an error.
LEFT_TO_US: dict[str, Any] = dict.fromkeys(
    ("init_method", "output_layer_init_method", "embedding_init_method"), _nothing
)


Start = Callable[[list[Any], Any], None]  # gives unwrapped chunks, built from this configuration, their weights


@dataclass
class Built:
    """What a training loop needs; ``chunks`` has one model per virtual pipeline stage."""

    chunks: list[Any]
    optimizer: Any
    notes: list[str]


def build(core: CoreConfig, machine: Machine, vocab_size: int, weights: Start | None = None) -> Built:
    """Process groups, model, wrappers and optimizer, in the order that the library needs them.

    ``vocab_size`` is the model's own; ``core.model["vocab_size"]`` is padded for the tensor-parallel size.
    ``weights`` fills the chunks; without it their weights are drawn.
    """
    parallel_state.initialize_model_parallel(**core.parallel)
    random_states.seed(core.training.seed)
    chunks, config, notes = bare(core, machine, vocab_size, weights)
    wrapped = [Float16Module(config, chunk) if config.bf16 or config.fp16 else chunk for chunk in chunks]
    # its own check ends one rank in the middle of a step; here all judge the reduced numbers together (setbacks.py)
    ddp = DistributedDataParallelConfig(**core.ddp | {"check_for_nan_in_grad": False})
    models = [
        DistributedDataParallel(
            config=config,
            ddp_config=ddp,
            module=chunk,
            # later chunks run their backward pass first: without overlap one bucket each is enough
            disable_bucketing=index > 0 and not ddp.overlap_grad_reduce,
        )
        for index, chunk in enumerate(wrapped)
    ]
    use_group_step_adam()
    optimizer = get_megatron_optimizer(OptimizerConfig(**_values(core.optimizer)), models)
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if ddp.overlap_grad_reduce:
        _overlap(config, models)
    return Built(models, optimizer, notes)


def bare(
    core: CoreConfig, machine: Machine, vocab_size: int, weights: Start | None = None
) -> tuple[list[Any], Any, list[str]]:
    """The unwrapped chunks of this rank, their configuration, and what differs from the file on this machine."""
    settings, notes = transformer_settings(machine, core.transformer)
    config = TransformerConfig(**_values(settings), **LEFT_TO_US)
    if not machine.transformer_engine:
        _repair_router()
    chunks = [_chunk(core, config, machine, vocab_size, stage) for stage in _stages(core)]
    if weights is None:
        for chunk in chunks:
            initialise(chunk, config, core.training.seed, vocab_size)
    else:
        weights(chunks, config)
    return chunks, config, notes


def _values(section: dict[str, Any]) -> dict[str, Any]:
    """The section with its names of dtypes and activations replaced by the things themselves."""
    values = dict(section)
    for key, value in section.items():
        if key.endswith("_dtype") and isinstance(value, str):
            values[key] = DTYPES[value]
    if "activation_func" in values:
        values["activation_func"] = ACTIVATIONS[values["activation_func"]]
    return values


def _stages(core: CoreConfig) -> list[int | None]:
    virtual = core.parallel.get("virtual_pipeline_model_parallel_size") or 1
    return list(range(virtual)) if virtual > 1 else [None]


def _chunk(core: CoreConfig, config: Any, machine: Machine, vocab_size: int, stage: int | None) -> Any:
    model = GPTModel(
        config=config,
        transformer_layer_spec=_layer_specs(config, machine, stage),
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        vp_stage=stage,
        **core.model,
    )
    if model.post_process:
        hide_padding(model, vocab_size)
    return model if machine.device == "cpu" else model.cuda()


def _layer_specs(config: Any, machine: Machine, stage: int | None) -> Any:
    """The library's specification of this stage's layers; without Transformer Engine, two layers are ours."""
    block = get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=machine.transformer_engine,
        normalization=config.normalization,
        vp_stage=stage,
    )
    if machine.transformer_engine:
        return block
    for spec in block.layer_specs:
        spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = layers.Norm
        attention = spec.submodules.self_attention.submodules
        attention.core_attention = layers.CausalAttention
        if config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = layers.Norm
    block.layer_norm = layers.Norm
    return block


def _repair_router() -> None:
    """megatron-core 0.16.1 names ``te_general_gemm`` in its router without defining it where there is no engine."""
    import megatron.core.transformer.moe.moe_utils as moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def _overlap(config: Any, models: list[Any]) -> None:
    """Hand the schedules the hooks with which gradients are reduced while the backward pass still runs."""
    no_sync = [model.no_sync for model in models]
    config.no_sync_func = no_sync if len(models) > 1 else no_sync[0]
    if len(models) > 1:
        config.grad_sync_func = [model.start_grad_sync for model in models]


def loss_scale_can_fall(optimizer: Any) -> bool:
    """Whether what overflows now is left out, and the loss scale lowered (fp16)."""
    for each in getattr(optimizer, "chained_optimizers", [optimizer]):
        scaler = getattr(each, "grad_scaler", None)
        if hasattr(scaler, "min_scale"):  # the dynamic one
            return bool(scaler.scale.item() > scaler.min_scale.item())
    return False


def set_learning_rate(optimizer: Any, learning_rate: float, weight_decay: float) -> None:
    """One learning rate for all groups; biases and norms (``wd_mult`` 0) are not decayed."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
        group["weight_decay"] = weight_decay * group["wd_mult"]
