"""Rules of what saves memory: ZeRO, sharding groups, offload, recomputation."""

from __future__ import annotations

from toolkit.pipeline_split import pipeline_split
from toolkit.search.rule import ALL, DATA_PARALLEL, Constraint, divides

SAVING: tuple[Constraint, ...] = (
    Constraint(
        "zero_stages",
        "ddp is stage 0, Megatron 0 or 1, fsdp 3, deepspeed 0 to 3",
        ("ddp", "fsdp", "megatron"),
        lambda m, c, w, s: (
            (s.zero_stage == 0)
            if s.framework == "ddp"
            else (s.zero_stage == 3)
            if s.framework == "fsdp"
            else (s.zero_stage <= 1)
        ),
        "{s.framework} does not do zero stage {s.zero_stage}",
        "ddp is stage 0, the Megatron distributed optimizer is stage 1, fsdp is stage 3; deepspeed does 0 to 3",
    ),
    Constraint(
        "zero_needs_data_parallel",
        "ZeRO divides nothing when dp x cp is 1",
        ALL,
        # ... but offload on one GPU is reached through a stage, and saves what it saves
        lambda m, c, w, s: (s.zero_stage == 0) | (s.dp * s.cp > 1) | (s.offload > 0),
        "ZeRO has no effect with data-parallel size {s.dp}: nothing is divided",
        "lower tp or pp so that dp grows, or drop the ZeRO stage",
        advice=True,
        source="DeepSpeed issue 237",
    ),
    Constraint(
        "shard_group",
        "the sharding group must divide dp, and only fsdp has one smaller than dp",
        ALL,
        lambda m, c, w, s: divides(s.dp_shard, s.dp) if s.framework == "fsdp" else s.dp_shard == s.dp,
        "{s.framework} cannot share a copy among {s.dp_shard} of the dp {s.dp} ranks",
        "use --framework fsdp with the GPUs of one node, or leave --dp-shard out",
        source="torch.distributed.fsdp ShardingStrategy.HYBRID_SHARD",
    ),
    Constraint(
        "offload",
        "optimizer offload needs DeepSpeed stage 1, parameter offload stage 3",
        ALL,
        lambda m, c, w, s: (
            ((s.offload == 0) | (s.zero_stage >= 1)) & ((s.offload < 2) | (s.zero_stage == 3))
            if s.framework == "deepspeed"
            else (s.offload == 0)
        ),
        "offload level {s.offload} with {s.framework} zero stage {s.zero_stage}: optimizer offload needs DeepSpeed "
        "stage 1 or more, parameter offload needs stage 3",
        "{offload_remedy}",
        source="DeepSpeed 0.19.8: offload_param is silently ignored below stage 3",
    ),
    Constraint(
        "hpz",
        "hpZ needs DeepSpeed stage 3, a group inside one node, and several nodes",
        ALL,
        lambda m, c, w, s: (
            (s.hpz == 1)
            | (
                (s.framework == "deepspeed")
                & (s.zero_stage == 3)
                & divides(s.hpz, s.dp)
                & (s.hpz <= c.gpus_per_node)
                & (c.nodes > 1)
                & (s.offload < 2)
            )
        ),
        "hpz {s.hpz} needs DeepSpeed zero stage 3, a group that divides dp {s.dp} inside one node, and more than one "
        "node",
        "drop --hpz, or set it to the {c.gpus_per_node} GPUs of a node",
        source="DeepSpeed 0.19.8 zero/config.py; DeepSpeed issue 3827",
    ),
    Constraint(
        "hpz_once",
        "a process makes hpZ's groups once, and DPO shards two models",
        ("deepspeed",),
        lambda m, c, w, s: (s.hpz == 1) | (w.objective != "dpo") | (w.method != "full"),
        "hpz {s.hpz} with objective dpo: its reference model would be the second one in the process that is sharded",
        "drop --hpz, or train adapters, which need no reference model",
        source="DeepSpeed 0.19.8, utils/groups.py, _create_zero_param_parallel_group: asserted to be called once",
    ),
    Constraint(
        "fp16_stage_0",
        "DeepSpeed scales the loss of fp16 at ZeRO stages 1 to 3 only",
        ("deepspeed",),
        lambda m, c, w, s: (s.zero_stage > 0) | (w.precision != "fp16"),
        "fp16 at ZeRO stage 0: gradients are divided by a scale that the loss was not multiplied by",
        "use --zero 1 or more, or --framework ddp",
        source="DeepSpeed 0.19.8, engine.py, backward(), and fp16/unfused_optimizer.py, step()",
    ),
    Constraint(
        "recompute",
        "selective recomputation is Megatron's",
        DATA_PARALLEL,
        lambda m, c, w, s: s.recompute != 1,
        "selective recomputation is Megatron's; Hugging Face models recompute none or full",
        "use --recompute full or none",
    ),
    Constraint(
        "recompute_flash",
        "recomputing the core of flash attention saves nothing: it never stores the scores",
        ("megatron",),
        lambda m, c, w, s: (s.recompute != 1) | (w.attention != "flash") | (w.recompute_modules != "core_attn"),
        "selective recomputation of flash attention saves no memory and takes time",
        "use --recompute none, or full with --recompute-layers",
        advice=True,
        source="megatron-core 0.16.1 transformer_config.py:1228",
    ),
    Constraint(
        "recompute_some",
        "recomputing some layers is Megatron's",
        DATA_PARALLEL,
        lambda m, c, w, s: s.recompute_layers == 0,
        "Hugging Face models recompute every layer or none, not {s.recompute_layers}",
        "leave --recompute-layers out, or use --framework megatron",
        source="transformers 5.24 modeling_utils.py, gradient_checkpointing_enable",
    ),
    Constraint(
        "recompute_layers",
        "some layers of a stage, as many in each virtual stage, belong to full recomputation",
        ("megatron",),
        lambda m, c, w, s: (
            (s.recompute_layers == 0)
            | (
                (s.recompute == 2)
                & divides(s.virtual_pipeline_stages, s.recompute_layers)
                & (s.recompute_layers < pipeline_split(m.num_hidden_layers, s.pp, s.virtual_pipeline_stages).middle)
            )
        ),
        "{s.recompute_layers} recomputed layers of a stage: with full recomputation it can be a multiple of the "
        "{s.virtual_pipeline_stages} virtual stages below the {stage_layers} layers of a stage",
        "use --recompute full; leave --recompute-layers out for all of them",
        source="megatron-core 0.16.1 transformer_block.py:544; its upper bound is not checked there",
    ),
)
