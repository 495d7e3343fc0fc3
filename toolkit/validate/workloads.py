"""The workload of a row: precision, kernels, and what its framework does with gradients and experts."""

from __future__ import annotations

from toolkit.cluster import ClusterSpec
from toolkit.model import ModelSpec
from toolkit.strategy import Strategy
from toolkit.validate.frameworks import engine_of, has_recipe_defaults
from toolkit.validate.kernels import (
    flash_generation_of,
    fused_loss_of,
    fuses_accumulation,
    fuses_loss,
    kernels_of,
    logged_losses_of,
)
from toolkit.validate.notes import notes_of, recompute_modules
from toolkit.validate.overlaps import expert_dispatch_of
from toolkit.validate.rows import Row, Unusable
from toolkit.validate.states import optimizer_of, sums_of, weights_of
from toolkit.workload import Workload

_FP8 = ("fp8", "mxfp8")
_OLD = ("volta", "turing")


def workload_of(
    row: Row, model: ModelSpec, cluster: ClusterSpec, strategy: Strategy, length: int, batch: int, assumed: list[str]
) -> Workload:
    """What is trained and how, beside the strategy; what is taken for granted joins ``assumed``. Raises Unusable."""
    card = cluster.accelerator
    stated = row.text("precision_norm")
    if not stated:
        precision = "bf16" if card.supports_bf16 else "fp16"
        assumed.append(precision)
    elif stated in _FP8:
        precision = "fp8"
    elif stated == "int4-base":  # QLoRA: the base is packed, what is computed is not
        precision = "bf16"
    else:
        precision = stated
    if precision not in ("bf16", "fp16", "fp32", "fp8"):
        raise Unusable(f"not modelled: precision {stated[:20]}")
    if precision not in card.peak_flop_per_second:
        raise Unusable(f"not modelled: {card.name} has no {precision} matrix products")
    name, notes = row.text("framework").casefold(), notes_of(row)
    flash = row.text("flash_attn").casefold()
    if not flash:
        old = card.architecture in _OLD or ("megatron" in name and "deepspeed" in name)
        eager = old or (notes.unfused and strategy.framework == "megatron")
    else:
        eager = flash in ("0", "unfused", "eager")
    megatron_lm = strategy.framework == "megatron" and "megatron" in name and not has_recipe_defaults(name)
    optimizer = row.text("optimizer").casefold()
    return Workload(
        sequence_length=length,
        global_batch_size=batch,
        precision=precision,
        method=row.text("task") if row.text("task") in ("lora", "qlora") else "full",
        optimizer=optimizer_of(optimizer),
        attention="eager" if eager else "flash",
        flash_generation=flash_generation_of(name, flash),
        gradient_accumulation_dtype=sums_of(name, strategy.framework, precision, optimizer),
        dropout=megatron_lm and not model.gated_mlp and notes.positions not in ("rope", "none"),
        launch_blocking=notes.launch_blocking,
        fused_cross_entropy=strategy.framework == "megatron" and (fuses_loss(name) or notes.fused_loss),
        fused_accumulation=card.architecture not in _OLD and fuses_accumulation(name),
        expert_dispatch=notes.expert_dispatch or expert_dispatch_of(name),
        expert_overlap=notes.expert_overlap,
        cuda_graphs=notes.cuda_graphs,
        kernels=kernels_of(name, strategy.framework, row.text("compile") == "1"),
        logged_losses=logged_losses_of(name),
        weights=weights_of(
            name, strategy.framework, row.text("precision"), precision, f"{row.text('notes')} {optimizer}"
        ),
        fused_loss=fused_loss_of(name),
        engine=engine_of(name, strategy.framework),
        recompute_modules=recompute_modules(row.text("recompute")),
    )
