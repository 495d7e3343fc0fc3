"""Equations A10..A16: activations, logits and working memory of one pipeline stage.

``T`` is the tokens of one micro batch on one rank, ``b s / cp``; ``t`` the tensor-parallel degree; ``sigma``
is ``t`` with sequence parallelism, else 1. Recomputation: none keeps everything; selective and full keep what
:mod:`toolkit.estimate.layer_bytes` says, and one layer is alive whole while it is recomputed; full recomputation of
some layers lies between none and full (:mod:`toolkit.estimate.recomputation`).
"""

from __future__ import annotations

from typing import NamedTuple

from toolkit.equation import equation
from toolkit.estimate.layer_bytes import Kernels, kernels
from toolkit.estimate.layout import Stage, Tables, padded_vocabulary
from toolkit.estimate.logits import head_backward_bytes, logits_of
from toolkit.estimate.recomputation import partly_recomputed_bytes, recomputed_share
from toolkit.model import ModelSpec
from toolkit.numeric import Number, maximum, where
from toolkit.strategy import Strategy
from toolkit.workload import Workload


class Activations(NamedTuple):
    """Bytes: kept between forward and backward, logits, and the working set of one layer's backward.

    The working set is ``recomputed`` activations of that layer and its ``gradients`` of activations.
    """

    kept: Number
    logits: Number
    loss_workspace: Number
    recomputed: Number
    gradients: Number


@equation("A10", "T*(R/sigma + S/t + u*(X*t_e + I)/t)")
def kept_bytes(
    tokens: Number,
    replicated: Number,
    sharded: Number,
    dispatched: Number,
    inside: Number,
    sigma: Number,
    tp: Number,
    etp: Number,
    load: Number,
) -> Number:
    """What layers keep for one micro batch, from bytes per token.

    ``R`` replicated, ``S`` sharded, ``X`` dispatched to routed experts (over ``t / t_e`` ranks), ``I`` inside
    them; ``u`` is the tokens on the fullest expert rank over the mean. Without experts this is
    ``s b h (10 + 24/t + 5 a s/(h t))`` and, with sequence parallelism, ``s b h (34 + 5 a s/h) / t`` of
    Korthikanti et al. 2022. Source: arXiv 2205.05198, equations 2 and 4.
    """
    return tokens * (replicated / sigma + sharded / tp + load * (dispatched * etp + inside) / tp)


@equation("A11", "T*L*b_c/sigma")
def checkpoints_bytes(tokens: Number, layers: Number, bytes_per_token: float, sigma: Number) -> Number:
    """Inputs of ``L`` layers, all that full recomputation keeps (2 s b h L).

    Source: arXiv 2205.05198 section 5.
    """
    return tokens * (layers * bytes_per_token) / sigma


@equation("A15", "max(T*b*(h*(1 + g) - f/t) + b*W/t, T*b*(1 + gated)*f/t)")
def fused_working_bytes(
    tokens: Number, bytes_per_value: float, hidden_size: int, width: float, weights: float, gated: int, tp: Number,
    gathered: Number,
) -> Number:  # fmt: skip
    """Backward of an MLP in Megatron: gathered input (``g`` = 1 with sequence parallelism), gradient of the input,
    and, without fused accumulation, the gradient of the ``W`` weights of the first matrix before it is added to the
    float32 buffer, less what of the MLP has been released by then; or the gradients inside the activation where those
    are larger. Source: megatron-core 0.16.1 ``core/tensor_parallel/layers.py``; a dry run of it.
    """
    first = tokens * bytes_per_value * (hidden_size * (1.0 + gathered) - width / tp) + bytes_per_value * weights / tp
    return maximum(first, tokens * (bytes_per_value * (1.0 + gated) * width) / tp)


@equation("A26", "T*k*b*h/t*(1 + u*([e > 1] + t_e*(1 + [E > e])))")
def expert_exchange_bytes(
    tokens: Number, experts_per_token: int, bytes_per_value: float, hidden_size: int, tp: Number, ep: Number,
    etp: Number, load: float, experts: int,
) -> Number:  # fmt: skip
    """Forward pass of a layer with experts, beyond what it keeps: copies of its tokens that are alive when the
    experts are done: sorted for the exchange, received, the experts' output, and that sorted back for the return.

    The library's forward pass holds the first two by name until it returns. One rank receives no other copy than it
    sends; one expert on a rank needs no sorting. Left out: DeepEP's dispatcher.
    Source: megatron-core 0.16.1 ``core/transformer/moe/moe_layer.py`` (custom_forward), token_dispatcher.py; a dry
    run of it.
    """
    copies = 1.0 + load * (where(ep > 1, 1.0, 0.0) + etp * (1.0 + where(experts > ep, 1.0, 0.0)))
    return tokens * (experts_per_token * bytes_per_value * hidden_size) / tp * copies


@equation("A16", "T*b*(3*f/t + h)")
def eager_working_bytes(tokens: Number, bytes_per_value: float, hidden_size: int, width: float, tp: Number) -> Number:
    """Backward of an eager gated MLP: gradients of product, gate and up, and of the layer's output.

    Source: order of autograd's backward in ``LlamaMLP``, transformers 5.24.
    """
    return tokens * bytes_per_value * (3.0 * width / tp + hidden_size)


def activations(
    model: ModelSpec, workload: Workload, strategy: Strategy, table: Tables, stage: Stage, peak_load: float
) -> Activations:
    """Activations of one stage at the moment when most micro batches are alive.

    ``peak_load`` is the load of the fullest experts over the mean, where experts are spread over ranks.
    """
    framework = strategy.framework
    k = kernels(model, workload, framework)
    tokens = 1.0 * strategy.micro_batch_size * workload.sequence_length / strategy.cp
    sigma = where(strategy.sequence_parallel > 0, strategy.tp, 1)
    load = where(strategy.ep > 1, peak_load, 1.0) if model.is_moe else 1.0
    cuts = (sigma, strategy.tp, strategy.etp, load)

    everything = kept_bytes(tokens, *stage.kept, *cuts)
    selective = kept_bytes(tokens, *stage.selective, *cuts)
    inputs = checkpoints_bytes(tokens, stage.layers, table.checkpoint, sigma)
    share = recomputed_share(strategy.recompute_layers, stage.layers)
    full = partly_recomputed_bytes(share, inputs, everything)
    per_micro_batch = where(strategy.recompute == 2, full, where(strategy.recompute == 1, selective, everything))

    gathered = where((strategy.sequence_parallel > 0) & (strategy.tp > 1), 1.0, 0.0)
    gradient = _working(model, workload, strategy, tokens, k, gathered)
    if model.is_moe and framework == "megatron" and workload.expert_dispatch != "deepep":
        exchanged = expert_exchange_bytes(
            tokens, model.num_experts_per_tok, k.compute, model.hidden_size, strategy.tp, strategy.ep, strategy.etp,
            load, model.num_experts,
        )  # fmt: skip
        gradient = maximum(gradient, exchanged)
    whole_layer = kept_bytes(tokens, *table.kinds[0], *cuts)
    for kind in table.kinds[1:]:
        whole_layer = maximum(whole_layer, kept_bytes(tokens, *kind, *cuts))
    if (
        framework == "megatron" and workload.kernels != "unfused"
    ):  # the first norm of the layer that runs again keeps the checkpoint itself, no copy
        whole_layer = maximum(whole_layer - checkpoints_bytes(tokens, 1.0, table.checkpoint, sigma), 0.0)
    partly = maximum(everything - selective, 0.0) / maximum(stage.layers, 1.0)
    # where some layers keep everything, those of this micro batch have gone before the first layer runs again
    whole_layer = where(share < 1.0, 0.0, whole_layer)
    recomputed = where(strategy.recompute == 2, whole_layer, where(strategy.recompute == 1, partly, 0.0))

    head = stage.head * tokens
    last_norm = head * (k.norm + k.matmul_input) * model.hidden_size / sigma
    dropped = stage.embedding * workload.dropout * tokens * model.hidden_size / sigma
    logits, workspace = logits_of(model, workload, strategy, head, k)
    if framework == "megatron" and not workload.fused_accumulation:
        vocabulary = padded_vocabulary(model.vocab_size, framework, strategy.tp)
        unfused = head_backward_bytes(head, vocabulary, model.hidden_size, k.compute, stage.head, strategy.tp, gathered)
        workspace = maximum(workspace, unfused - logits)
    # DeepSpeed's pipeline keeps the output of a stage too; Megatron's frees its memory once it is sent
    sent = where(strategy.pp > 1, tokens * k.stream * model.hidden_size, 0.0) if workload.engine == "deepspeed" else 0.0
    return Activations(
        kept=stage.in_flight * (per_micro_batch + dropped + sent) + last_norm,
        logits=logits,
        loss_workspace=workspace,
        recomputed=recomputed,
        gradients=gradient,
    )


def _working(
    model: ModelSpec, workload: Workload, strategy: Strategy, tokens: Number, k: Kernels, gathered: Number
) -> Number:
    inside = 0.0
    if "D" in model.layer_mlps:
        inside = float(model.intermediate_size)
    if "E" in model.layer_mlps:
        routed = model.num_experts_per_tok * model.moe_intermediate_size
        inside = max(inside, float(routed + model.shared_expert_intermediate_size))
    if strategy.framework != "megatron":
        return eager_working_bytes(tokens, k.compute, model.hidden_size, inside, strategy.tp)
    opening = max(model.intermediate_size if "D" in model.layer_mlps else 0, model.moe_intermediate_size)
    weights = 0.0 if workload.fused_accumulation else float(model.hidden_size) * opening * (1 + model.gated_mlp)
    return fused_working_bytes(
        tokens, k.compute, model.hidden_size, inside, weights, int(model.gated_mlp), strategy.tp, gathered
    )
