"""What one layer of a model keeps per token, by framework: the coefficients that go into A1..A9.

Three sets of kernels:

- *fused* (Megatron, and where the workload says that kernels are compiled or hand-written): norms keep their
  input; SwiGLU keeps its two inputs and its product; experts apply the routing weight inside the activation.
  megatron-core 0.16.1, ``core/fusions``.
- *eager* (Hugging Face transformers 5.24 under DDP, FSDP and DeepSpeed): an RMSNorm keeps a float32 copy of
  its input and, where its weight is trained, the normalised values (``LlamaRMSNorm``); an eager SwiGLU keeps
  gate, activated gate, up and product. Under autocast (DDP: float32 parameters, unless frozen) the residual stream
  is float32; each matrix, or its float32 adapter over a frozen base, casts its own copy of the input.
- *unfused* (megatron-core without compiled kernels, as on processors): torch's composed RMSNorm keeps float32 copies
  of its input and of the normalised values; a gated activation keeps its joint input, the activated gate, the other
  half with an offset added, and the product (``core/transformer/mlp.py``); values are a view that keeps the joint
  projection alive beside rotary queries and keys. Live tensors of a step counted on a processor say the same.
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.estimate import layer_activations as leaf
from toolkit.estimate.precision import pure, stream_bytes, value_bytes
from toolkit.model import ModelSpec
from toolkit.workload import WORDS, Workload

KERNELS = WORDS["kernels"]  # of a workload
FUSED_LAYERS, FUSED_LOSS = ("fused", "megatron"), ("loss", "fused")
# Tensors of the MLP's width that eager modules of transformers 5.24 keep; composed functions keep their steps.
EAGER_UNGATED = {"gelu_new": 5.0, "gelu_fast": 6.0, "quick_gelu": 4.0, "relu": 1.0, "relu2": 2.0}
# RMSNorms that multiply by their weight in float32, so that the float32 product is kept, not a 16-bit one.
WIDE_NORMS = (
    "gemma",
    "t5gemma",
    "vaultgemma",
    "recurrent_gemma",
    "olmo2",
    "olmo3",
    "flex_olmo",
    "gpt_oss",
    "qwen3_next",
)
PARALLEL_NORMS = ("gpt_neox", "falcon")


class LayerBytes(NamedTuple):
    """Bytes per token: on every rank of the tensor axis, divided by it; dispatched to routed experts, inside them."""

    replicated: float
    sharded: float
    dispatched: float = 0.0
    inside: float = 0.0

    def plus(self, other: LayerBytes) -> LayerBytes:
        """Sum, part by part."""
        return LayerBytes(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def total(self) -> float:
        """All parts, on one rank without parallelism."""
        return sum(self)


class Kernels(NamedTuple):
    """Coefficients of one framework and workload, in bytes per value."""

    compute: float  # activations
    stream: float  # residual stream between layers: 4 under autocast over float32 weights
    matmul_input: float  # what a matrix keeps of its input: 1 in fp8
    norm: float  # what a norm keeps per value
    head_norm: float  # the same for norms on queries and keys
    casts: bool  # each matrix keeps its own cast of the input
    gated: float
    ungated: float
    score: float
    repeats_keys: bool  # keys and values are expanded to all query heads
    views: bool  # values are a view that keeps the joint buffer of a fused projection alive
    routed_copies: float
    joint: bool = False  # queries, keys and values come out of one product, whatever the model is by itself


def kernels(model: ModelSpec, workload: Workload, framework: str) -> Kernels:
    """The coefficients for a framework: fused for Megatron and where the workload says so, eager for the others.

    Raises ToolkitError for kernels that are not known.
    """
    if workload.kernels not in KERNELS:
        raise ToolkitError(f"unknown kernels {workload.kernels!r}", remedy=f"known: {', '.join(KERNELS)}")
    b = value_bytes(workload)
    stream = stream_bytes(workload, framework)
    if framework == "megatron" and workload.kernels == "unfused":
        norm = stream if model.norm_bias or model.unbiased_layer_norm else 8.0
        score = 4.0 if b == 4.0 else 4.0 + b
        return Kernels(b, stream, b, norm, 8.0, False, 5.0 * b, 2.0 * b, score, False, True, 1.0, joint=True)
    if framework == "megatron" or workload.kernels in FUSED_LAYERS:
        inputs = 1.0 if workload.precision == "fp8" else b
        if framework == "megatron" and workload.engine == "nanotron":  # its activation and product are two operators
            return Kernels(b, stream, b, stream, b, False, 4.0 * b, 2.0 * b, b, False, True, 1.0)
        return Kernels(b, stream, inputs, stream, b, False, 2.0 * b + inputs, b + inputs, b, False, False, inputs / b)
    trained = workload.method == "full"
    wide = model.model_type.startswith(WIDE_NORMS)
    rms_norm = 4.0 + trained * (4.0 if wide else stream)
    ungated = EAGER_UNGATED.get(model.hidden_act, 2.0)
    return Kernels(
        compute=b,
        stream=stream,
        matmul_input=b,
        norm=stream if model.norm_bias or model.unbiased_layer_norm else rms_norm,  # PyTorch fuses LayerNorm
        head_norm=4.0 + trained * (4.0 if wide else b),
        # peft 0.21.2 casts before autocast does (lora/layer.py), but not over a 4-bit base (lora/bnb.py)
        casts=framework == "ddp" and b < 4.0 and workload.method != "qlora" and not pure(workload, framework),
        gated=4.0 * b,
        ungated=ungated * b,
        score=4.0 if b == 4.0 else 4.0 + b,
        repeats_keys=workload.attention == "eager",
        views=True,
        routed_copies=2.0,
    )


def layer_bytes(model: ModelSpec, workload: Workload, framework: str, mixer: str, mlp: str) -> LayerBytes:
    """What one layer keeps without recomputation."""
    k = kernels(model, workload, framework)
    # norms side by side on one input (parallel residual) keep it once
    norms = 1 if model.model_type in PARALLEL_NORMS and framework != "megatron" else model.norms_per_layer
    kept = LayerBytes(leaf.norm_bytes(norms, model.hidden_size, k.norm), 0.0)
    shared_input = model.norms_per_layer == 1 and mixer != "-" and mlp != "-"  # attention and MLP side by side
    if mixer in "AB":
        kept = kept.plus(_attention(model, workload, k))
    if mixer in "MBLC":
        kept = kept.plus(_recurrent(model, k, mixer))
    if mlp == "D":
        kept = kept.plus(_mlp(model, workload, k, model.intermediate_size))
    if mlp == "E":
        kept = kept.plus(expert_bytes(model, workload, k))
    if shared_input:
        kept = kept.plus(LayerBytes(-leaf.input_bytes(1.0, k.matmul_input, model.hidden_size, 0), 0.0))
    return kept


def every_second_product_bytes(
    model: ModelSpec, workload: Workload, framework: str, mixer: str, mlp: str
) -> LayerBytes:
    """Selective recomputation outside Megatron, torchtitan's op-level policy: what one layer keeps.

    Layer input, attention output, and every second matrix product.
    """
    k = kernels(model, workload, framework)
    full = layer_bytes(model, workload, framework, mixer, mlp)
    queries = model.num_attention_heads * (model.v_head_dim or model.head_dim)
    keys = model.num_key_value_heads * model.head_dim
    attention = mixer in "AB"
    h, f = model.hidden_size, model.intermediate_size
    # of query, key, value, output, up or gate, other, down: the first, third, fifth and seventh
    products = 1.0 * attention * (queries + keys)
    if mlp == "D":
        products += f + model.gated_mlp * h
    elif mlp == "E":
        inside = (1.0 + model.gated_mlp) * model.moe_intermediate_size + h
        products += model.num_experts_per_tok * inside / 2.0
        products += model.shared_expert_intermediate_size
    kept = k.stream * h + k.compute * (attention * queries + products)
    return LayerBytes(0.0, min(kept, full.total))


def checkpoint_bytes(model: ModelSpec, workload: Workload, framework: str) -> float:
    """What one layer keeps with full recomputation: its input, as wide as the residual stream (2 s b h)."""
    return leaf.input_bytes(1.0, kernels(model, workload, framework).stream, model.hidden_size, 0)


def score_bytes(model: ModelSpec, workload: Workload, k: Kernels) -> float:
    """Scores of one attention layer that is not fused."""
    return leaf.score_bytes(k.score, workload.dropout, k.compute, model.num_attention_heads, workload.sequence_length)


def _attention(model: ModelSpec, workload: Workload, k: Kernels) -> LayerBytes:
    copies = float(k.casts * (0 if model.fused_qkv else 2) + 1)
    opening = leaf.input_bytes(copies, k.matmul_input, model.hidden_size, workload.dropout)
    heads, keys = model.num_attention_heads, model.num_key_value_heads
    # fused kernels keep one float32 per head and token (log-sum-exp); eager ones keep the scores
    rest = 4.0 * heads if workload.attention == "flash" else score_bytes(model, workload, k)
    if model.is_mla:
        latents, sharded = leaf.latent_attention_bytes(
            k.compute,
            k.head_norm,
            heads,
            model.q_lora_rank,
            model.kv_lora_rank,
            model.qk_nope_head_dim,
            model.qk_rope_head_dim,
            model.v_head_dim,
        )
        sharded += k.views * k.compute * heads * model.qk_nope_head_dim
        return LayerBytes(opening + latents, sharded + rest)
    sharded = leaf.attention_bytes(k.compute, model.head_dim, heads, heads if k.repeats_keys else keys)
    if model.qk_norm != "none":
        sharded += leaf.norm_bytes(1, (heads + keys) * model.head_dim, k.head_norm)
    joint = model.fused_qkv or k.joint or workload.engine == "nanotron"
    if k.views and joint and not model.learned_positions:  # rotary queries and keys are new tensors
        sharded += k.compute * model.head_dim * (heads + keys)
    if model.attention_output_gate:
        sharded += k.compute * 2.0 * heads * model.head_dim
    return LayerBytes(opening, sharded + rest)


def _mlp(model: ModelSpec, workload: Workload, k: Kernels, width: int) -> LayerBytes:
    copies = float(k.casts * (model.gated_mlp and not model.fused_gate_up) + 1)
    opening = leaf.input_bytes(copies, k.matmul_input, model.hidden_size, workload.dropout)
    return LayerBytes(opening, leaf.mlp_bytes(k.gated if model.gated_mlp else k.ungated, width))


def expert_bytes(model: ModelSpec, workload: Workload, k: Kernels) -> LayerBytes:
    """Router, routed and shared experts of one layer, with the input that they share."""
    per_width = k.gated if model.gated_mlp else k.ungated
    # the routing weight is applied to the activation: fused into SwiGLU only
    per_expert_width = per_width if model.gated_mlp else per_width + k.compute
    wide = k.stream / k.compute  # autocast leaves grouped matrix products in the residual stream's float32
    dispatched, inside = leaf.routed_bytes(
        model.num_experts_per_tok,
        k.routed_copies,
        k.compute * wide,
        model.hidden_size,
        per_expert_width * wide,
        model.moe_intermediate_size,
    )
    copies = 1.0 + 2.0 * (k.casts and model.shared_expert_intermediate_size > 0)
    opening = leaf.input_bytes(copies, k.matmul_input, model.hidden_size, workload.dropout)
    router = 8.0 * model.num_experts  # float32 logits and probabilities
    shared = leaf.mlp_bytes(per_width, model.shared_expert_intermediate_size)
    return LayerBytes(opening + router, shared, dispatched, inside)


def _recurrent(model: ModelSpec, k: Kernels, mixer: str) -> LayerBytes:
    opening = leaf.input_bytes(0.0 if mixer == "B" else 1.0, k.matmul_input, model.hidden_size, 0)
    if mixer == "L":
        keys = model.linear_num_key_heads * model.linear_key_head_dim
        values = model.linear_num_value_heads * model.linear_value_head_dim
        return LayerBytes(opening, leaf.delta_rule_bytes(k.compute, keys, values))
    if mixer == "C":  # three projections, their gated convolution, the product
        return LayerBytes(opening, k.compute * 6.0 * model.hidden_size)
    inside = leaf.state_space_bytes(
        k.compute, model.mamba_intermediate_size, model.mamba_groups, model.state_size, model.mamba_num_heads
    )
    return LayerBytes(opening, inside)
