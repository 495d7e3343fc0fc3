"""The bare model of a checkpoint, without an optimizer, on CPUs: what a conversion reads weights into."""

from __future__ import annotations

from typing import Any

from recipes.pretrain import validity
from recipes.pretrain.config import CoreConfig, Training
from recipes.pretrain.hugging_face import architecture
from toolkit.errors import Problems
from toolkit.model import ModelSpec
from toolkit.registry.clusters import load_cluster
from toolkit.strategy import Strategy


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
    cpus = join()
    from megatron.core import parallel_state, tensor_parallel

    from recipes.pretrain import model

    parallel_state.initialize_model_parallel(**core.parallel)
    tensor_parallel.model_parallel_cuda_manual_seed(core.training.seed)
    chunks, config, _ = model.bare(core, cpus, spec.vocab_size, start)
    return chunks, config


def join() -> Any:
    """Make one group of all processes, over gloo; returns the machine."""
    from recipes.pretrain import machine

    cpus = machine.on_cpu()
    import torch

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(cpus.backend)
    return cpus
