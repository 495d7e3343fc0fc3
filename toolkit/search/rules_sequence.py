"""Rules of stages, sequences and batches: pipeline and context parallelism, micro batches."""

from __future__ import annotations

from toolkit.context_parallel import exchanging_ranks, heads_per_rank
from toolkit.pipeline_split import IMPOSSIBLE, pipeline_split
from toolkit.search.rule import ALL, Constraint, divides

SHORTEST_PIECE = 512  # tokens; a choice: published runs with context parallelism have 2,048 and more, tests of it 512

SEQUENCE: tuple[Constraint, ...] = (
    Constraint(
        "pipeline_layers",
        "the layers must split over pp stages (even, counting embedding or head, or shorter ends)",
        ("megatron",),
        lambda m, c, w, s: pipeline_split(m.num_hidden_layers, s.pp).way != IMPOSSIBLE,
        "the {m.num_hidden_layers} layers of {m.name} cannot be split over pp {s.pp} stages",
        "choose a smaller pp, or one that divides the layers, the layers + 1 or the layers + 2",
        source="megatron-core 0.16.1 transformer_block.py:156, transformer_config.py:1294-1480",
    ),
    Constraint(
        "virtual_stages",
        "the layers (embedding and head counted as one each, or not) must split over pp x virtual stages, and "
        "interleaving needs pp > 1",
        ALL,
        lambda m, c, w, s: (
            (s.virtual_pipeline_stages == 1)
            | ((s.pp > 1) & (pipeline_split(m.num_hidden_layers, s.pp, s.virtual_pipeline_stages).way != IMPOSSIBLE))
        ),
        "{m.num_hidden_layers} layers over pp {s.pp} cannot be cut into {s.virtual_pipeline_stages} equal virtual "
        "stages",
        "valid --vpp with pp {s.pp}: {vpp_choices}",
        source="megatron-core 0.16.1 transformer_block.py:175, parallel_state.py:746; Megatron-LM issue 468",
    ),
    Constraint(
        "virtual_micro_batches",
        "interleaving needs micro batches in multiples of pp",
        ("megatron",),
        lambda m, c, w, s: (s.virtual_pipeline_stages == 1) | divides(s.pp, s.gradient_accumulation_steps),
        "{s.gradient_accumulation_steps} micro batches are not a multiple of pp {s.pp}, as interleaving needs",
        "change the micro batch, or use one virtual stage",
        source="megatron-core 0.16.1 schedules.py:1003-1015",
    ),
    Constraint(
        "context_length",
        "the sequence length must be a multiple of 2 x cp",
        ("megatron",),
        lambda m, c, w, s: (s.cp == 1) | (w.sequence_length % (2 * s.cp) == 0),
        "sequence length {w.sequence_length} is not a multiple of 2 x cp {s.cp}",
        "pad sequences to a multiple of {sequence_multiple}",
        source="Megatron-LM arguments.py:818 (core 0.16.1)",
    ),
    Constraint(
        "context_short",
        "a rank should keep some hundreds of tokens of a sequence: kernels of shorter pieces were never measured",
        ("megatron",),
        lambda m, c, w, s: (s.cp == 1) | (w.sequence_length >= SHORTEST_PIECE * s.cp),
        "cp {s.cp} leaves a rank fewer than "
        + str(SHORTEST_PIECE)
        + " of the {w.sequence_length} tokens of a sequence",
        "lower --cp; dp shares sequences without cutting them",
        advice=True,
    ),
    Constraint(
        "context_method",
        "a way of sharing keys and values needs cp > 1 to have an effect",
        ALL,
        lambda m, c, w, s: (s.cp_method == "p2p") | (s.cp > 1),
        "cp method {s.cp_method} shares nothing with cp {s.cp}",
        "raise --cp (megatron), or leave --cp-method out",
        source="megatron-core 0.16.1 transformer_layer.py:295",
    ),
    Constraint(
        "context_heads",
        "exchanging heads needs query and key-value heads of a rank that cp divides",
        ("megatron",),
        lambda m, c, w, s: (s.cp_method != "a2a") | divides(s.cp, heads_per_rank(m, s.tp)),
        "cp {s.cp} by a2a does not divide the {m.num_attention_heads} query and {m.num_key_value_heads} key-value "
        "heads of {m.name} over tp {s.tp}",
        "lower --cp or --tp, or use --cp-method p2p",
        source="Transformer Engine 2.x context_parallel.py, AttnFuncWithCPAndQKVOA2A",
    ),
    Constraint(
        "context_levels",
        "two levels of context parallelism need ranks to exchange heads with inside a node, and more than one such "
        "group",
        ("megatron",),
        lambda m, c, w, s: (
            (s.cp_method != "a2a+p2p")
            | ((exchanging_ranks(m, c.fast_domain, s) > 1) & (exchanging_ranks(m, c.fast_domain, s) < s.cp))
        ),
        "cp {s.cp} has no two levels: heads of {m.name} over tp {s.tp} can be exchanged by {exchanging} ranks of a "
        "node",
        "use --cp-method p2p or a2a",
        source="Transformer Engine 2.x context_parallel.py, attn_forward_func_with_cp",
    ),
    Constraint(
        "context_latent",
        "latent attention shares keys and values in a ring only (p2p or a2a+p2p)",
        ("megatron",),
        lambda m, c, w, s: (not m.is_mla) | (s.cp_method == "p2p") | (s.cp_method == "a2a+p2p"),
        "the latent attention of {m.name} does not run with cp method {s.cp_method}",
        "use --cp-method p2p or a2a+p2p",
        source="Transformer Engine 2.x context_parallel.py, attn_forward_func_with_cp",
    ),
    Constraint(
        "context_window",
        "a sliding window does not run in a ring (a2a or all_gather)",
        ("megatron",),
        lambda m, c, w, s: (
            (not 0 < m.sliding_window < w.sequence_length)
            | (s.cp == 1)
            | (s.cp_method == "a2a")
            | (s.cp_method == "all_gather")
        ),
        "the sliding window of {m.name} does not run with cp method {s.cp_method}",
        "use --cp-method a2a or all_gather",
        source="Transformer Engine 2.x context_parallel.py, attn_forward_func_with_cp",
    ),
    Constraint(
        "sequence_length",
        "with sequence parallelism the sequence length must be a multiple of cp x tp",
        ("megatron",),
        lambda m, c, w, s: (s.sequence_parallel == 0) | (w.sequence_length % (s.cp * s.tp) == 0),
        "sequence length {w.sequence_length} / cp {s.cp} is not a multiple of tp {s.tp}, as sequence parallelism needs",
        "pad sequences to a multiple of {sequence_multiple}",
        source="megatron-core 0.16.1 tensor_parallel/mappings.py:173 (found only at run time)",
    ),
    Constraint(
        "global_batch",
        "micro batch x dp x accumulation must be the global batch",
        ALL,
        lambda m, c, w, s: 1.0 * s.micro_batch_size * s.dp * s.gradient_accumulation_steps == w.global_batch_size,
        "micro batch {s.micro_batch_size} x dp {s.dp} x accumulation {s.gradient_accumulation_steps} = "
        "{batch_product} is not the global batch of {w.global_batch_size} sequences",
        "choose a global batch that is a multiple of micro batch x dp",
        source="megatron-core 0.16.1 num_microbatches_calculator.py:340; DeepSpeed 0.19.8 runtime/config.py",
    ),
)
