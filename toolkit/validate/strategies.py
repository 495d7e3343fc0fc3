"""The strategy of a row: degrees, sharding, recomputation, and how its batch is cut."""

from __future__ import annotations

import msgspec

from toolkit.cluster import ClusterSpec
from toolkit.model import ModelSpec
from toolkit.strategy import OFFLOAD, RECOMPUTE, Strategy
from toolkit.validate.degrees import degrees_of
from toolkit.validate.frameworks import framework_of, has_recipe_defaults, is_data_parallel, shard_of, zero_of
from toolkit.validate.notes import notes_of, recompute_modules
from toolkit.validate.overlaps import data_overlap_of, tensor_overlap_of
from toolkit.validate.recomputed import recomputed_in_blocks, recomputed_layers, recomputes_by_default
from toolkit.validate.rows import Row, Unusable


def strategy_of(row: Row, model: ModelSpec, gpus: int, cluster: ClusterSpec, assumed: list[str]) -> Strategy:
    """Degrees and sharding; micro batch and accumulation follow (:func:`with_batch`). Raises Unusable."""
    degrees = degrees_of(row)
    tp, pp, cp, ep = degrees.tp, degrees.pp, degrees.cp, degrees.ep
    zero = _zero(row)
    if zero not in ("", "0", "1", "2", "3", "hsdp"):
        raise Unusable(f"not modelled: zero_norm {zero[:20]!r}")
    name = row.text("framework")
    framework = framework_of_row(row)
    recipes = has_recipe_defaults(name)
    blank = degrees.blank
    if blank and gpus > 1 and (framework == "megatron" or not (zero or is_data_parallel(name))):
        raise Unusable(f"missing: {', '.join(blank)}")
    if gpus % (tp * pp * cp):
        raise Unusable(f"contradiction: tp {tp} x pp {pp} x cp {cp} does not divide {gpus} GPUs")
    if degrees.contradiction:
        raise Unusable(degrees.contradiction)
    assumed += degrees.assumed
    dp = gpus // (tp * pp * cp)
    if pp > model.num_hidden_layers:
        raise Unusable(f"contradiction: {pp} pipeline stages for {model.num_hidden_layers} layers")
    if not model.is_moe:
        ep = 1
    etp = notes_of(row).expert_tensor_parallel or (tp if ep == 1 or not recipes else 1)
    if gpus % (etp * ep * pp):
        etp = 1
    if gpus % (ep * pp) or (ep > 1 and model.num_experts % ep):
        raise Unusable(f"contradiction: ep {ep} with {model.num_experts} experts, pp {pp} and {gpus} GPUs")
    if not zero and framework != "ddp":
        stage = 3 if framework == "fsdp" else int(recipes)
        assumed.append(f"ZeRO stage {stage}")
    else:
        stage = 3 if zero == "hsdp" else int(zero or 0)
    if framework == "fsdp" and stage < 2:
        stage = 3
    shard = shard_of(row.text("zero_stage"), cluster.gpus_per_node) or dp
    if zero == "hsdp" and shard == dp:
        shard = min(cluster.gpus_per_node, dp)
    shard = shard if shard <= dp and dp % shard == 0 else dp
    virtual = _virtual_stages(row, model, pp, assumed)
    if virtual > -(-model.num_hidden_layers // pp):  # embedding and head may take the place of a layer each
        raise Unusable(f"contradiction: pp {pp} x vpp {virtual} for {model.num_hidden_layers} layers")
    cut = _sequence_parallel(row, framework, tp, recipes or model.is_moe or notes_of(row).reduce_scatter, assumed)
    recompute, some = _recompute(row, framework, -(-model.num_hidden_layers // pp), assumed)
    return Strategy(
        framework=framework,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        etp=etp,
        dp=dp,
        dp_shard=shard,
        virtual_pipeline_stages=virtual,
        zero_stage=stage,
        sequence_parallel=cut,
        recompute=recompute,
        recompute_layers=some,
        offload=offload_of(row) or 0,
        schedule=notes_of(row).schedule,
        vocabulary=notes_of(row).vocabulary,
        tp_overlap=tensor_overlap_of(name, bool(cut)),
        dp_overlap=notes_of(row).data_overlap or data_overlap_of(name),
    )


def framework_of_row(row: Row) -> str:
    """The engine that the row's framework trains with, at the row's degrees."""
    degrees = degrees_of(row)
    several = max(degrees.tp, degrees.pp, degrees.cp, degrees.ep) > 1
    return framework_of(row.text("framework"), _zero(row), several, row.count("n_gpus") or 1)


def _zero(row: Row) -> str:
    return zero_of(row.text("zero_norm"), row.text("zero_stage"))


def _virtual_stages(row: Row, model: ModelSpec, pp: int, assumed: list[str]) -> int:
    """Stated, else 1; a dense model's recipe in NeMo and Megatron-Bridge interleaves, as deep as layers allow."""
    if pp == 1:
        return 1
    stated, layers = row.count("vpp"), model.num_hidden_layers
    if stated is None and not model.is_moe and has_recipe_defaults(row.text("framework")) and layers % pp == 0:
        assumed.append(f"{layers // pp} virtual stages")
        return layers // pp
    return stated or 1


def _sequence_parallel(row: Row, framework: str, tp: int, usual: bool, assumed: list[str]) -> int:
    if tp == 1 or framework != "megatron":
        return 0
    if row.text("sp") in ("0", "1"):
        return int(row.text("sp"))
    assumed.append(f"sequence parallelism {'on' if usual else 'off'}")
    return int(usual)


def _recompute(row: Row, framework: str, layers: int, assumed: list[str]) -> tuple[int, int]:
    """Index into RECOMPUTE, and how many layers of a stage run again; 0 stands for all."""
    if row.text("recompute_norm") == "full" and "block" in row.text("recompute").casefold():
        some = recomputed_in_blocks(row.text("recompute"))
        if not some:
            assumed.append("recomputation of every layer, of a number in blocks")
        return RECOMPUTE.index("full"), some if some < layers else 0
    every = recomputed_layers(row.text("recompute"))
    if every > 1:
        return RECOMPUTE.index("full"), max(layers // every, 1)
    return _kind_of_recomputation(row, framework, assumed), 0


def _kind_of_recomputation(row: Row, framework: str, assumed: list[str]) -> int:
    stated = row.text("recompute_norm")
    if stated not in ("", *RECOMPUTE):
        raise Unusable(f"not modelled: recompute_norm {stated[:20]!r}")
    if not stated and recomputes_by_default(row.text("framework")):
        assumed.append("recomputation of every layer")
        return RECOMPUTE.index("full")
    if not stated:
        assumed.append("no recomputation")
    modules = recompute_modules(row.text("recompute")).split("+")
    if stated == "selective" and framework != "megatron" and not {"core_attn", "mlp", "moe"} & set(modules):
        return 0  # parts that are cheap to run again
    return RECOMPUTE.index(stated or "none")


def offload_of(row: Row) -> int | None:
    """Index into OFFLOAD; None for activations, which no plan offloads (their copies are meant to hide)."""
    text = row.text("offload").casefold()
    if text in ("", "none"):
        return OFFLOAD.index("none")
    if "param" in text:
        return OFFLOAD.index("optimizer+parameters")
    return OFFLOAD.index("optimizer") if "optim" in text else None


def with_batch(row: Row, strategy: Strategy, assumed: list[str]) -> tuple[Strategy, int]:
    """Micro batch, accumulation and global batch: two of them say the third."""
    dp, batch = strategy.dp, row.count("global_batch")
    micro, times = row.count("micro_batch"), row.count("grad_accum")
    if batch is None:
        if micro is None:
            raise Unusable("missing: global_batch and micro_batch")
        batch = micro * dp * (times or 1)
        assumed.append(f"global batch {batch}")
    if micro is None:
        micro = max(batch // (dp * times), 1) if times else 1
        assumed.append(f"micro batch {micro}")
    if batch % (micro * dp):
        raise Unusable(f"contradiction: global batch {batch} is no multiple of micro batch {micro} x dp {dp}")
    changed = msgspec.structs.replace(
        strategy, micro_batch_size=micro, gradient_accumulation_steps=batch // (micro * dp)
    )
    return changed, batch
