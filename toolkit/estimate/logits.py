"""Equations A12..A14, A19, A24 and A25: logits, their gradient, and what the loss needs for a moment.

``T`` is the tokens of one micro batch on one rank, ``b s / cp``; ``t`` the tensor-parallel degree.
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.estimate.layer_bytes import FUSED_LOSS, Kernels
from toolkit.estimate.layout import padded_vocabulary
from toolkit.estimate.preference import is_preference, tiled_logits_bytes
from toolkit.model import ModelSpec
from toolkit.numeric import Number, minimum
from toolkit.strategy import Strategy
from toolkit.workload import Workload


@equation("A12", "T*V*(b + 4 + 4)/c")
def logits_bytes(tokens: Number, vocabulary: Number, bytes_per_value: float, cut: Number) -> Number:
    """Logits in the compute precision, their float32 copy, and its gradient; ``c`` ranks share the vocabulary.

    ``ForCausalLMLoss`` casts to float32; ``log_softmax`` keeps one such tensor. Source: transformers 5.24
    ``loss/loss_utils.py``; NVIDIA-NeMo/Automodel#2336 (6.54 GiB asked for in cross entropy).
    """
    return tokens * vocabulary * (bytes_per_value + 8.0) / cut


@equation("A13", "T*V*(b + 4)/t")
def vocabulary_parallel_logits_bytes(tokens: Number, vocabulary: Number, bytes_per_value: float, tp: Number) -> Number:
    """Megatron: logits and one float32 copy on which softmax and gradient work in place.

    Source: megatron-core 0.16.1, ``core/tensor_parallel/cross_entropy.py``. ``V`` is padded to ``128 t``.
    """
    return tokens * vocabulary * (bytes_per_value + 4.0) / tp


@equation("A24", "T*V*b/t")
def in_place_logits_bytes(tokens: Number, vocabulary: Number, bytes_per_value: float, tp: Number) -> Number:
    """Transformer Engine's loss: the gradient takes the place of the logits, and there is no float32 copy.

    Source: transformer_engine ``pytorch/triton/cross_entropy.py`` (``--cross-entropy-fusion-impl te``).
    """
    return tokens * vocabulary * bytes_per_value / tp


@equation("A25", "T*V*b/t + b*V*h/t + T*b*h*(1 + g)")
def head_backward_bytes(
    tokens: Number, vocabulary: Number, hidden_size: int, bytes_per_value: float, head: Number, tp: Number,
    gathered: Number,
) -> Number:  # fmt: skip
    """Backward of the head without fused accumulation: gradient of the logits, of the weights whole before it is added
    to the float32 buffer, of the input, and the gathered input (``g`` = 1 with sequence parallelism).

    Source: megatron-core 0.16.1 ``core/tensor_parallel/layers.py``; a dry run of it.
    """
    weights = head * bytes_per_value * vocabulary * hidden_size / tp
    return (
        tokens * vocabulary * bytes_per_value / tp + weights + tokens * bytes_per_value * hidden_size * (1.0 + gathered)
    )


@equation("A14", "10*T*min(h, V)")
def chunked_logits_bytes(tokens: Number, hidden_size: int, vocabulary: Number) -> Number:
    """Fused linear cross entropy: chunks of ``h / V`` of the tokens. Source: Liger kernel, arXiv 2410.10989."""
    return tokens * 10.0 * minimum(1.0 * vocabulary, hidden_size)


@equation("A19", "T*V*(b + b)/c")
def fused_logits_bytes(tokens: Number, vocabulary: Number, bytes_per_value: float, cut: Number) -> Number:
    """A fused or compiled loss: logits and their gradient, both in the compute precision, and no float32 copy.

    Source: flash-attn ``losses/cross_entropy.py`` without ``inplace_backward`` (Composer's default);
    ``torch.compile`` of ``F.cross_entropy(logits.float())``, which casts inside its kernels (torchtitan).
    """
    return tokens * vocabulary * (bytes_per_value + bytes_per_value) / cut


def logits_of(
    model: ModelSpec, workload: Workload, strategy: Strategy, tokens: Number, k: Kernels
) -> tuple[Number, Number]:
    """Logits, and what the loss needs on top of them for a moment."""
    vocabulary = padded_vocabulary(model.vocab_size, strategy.framework, strategy.tp)
    if is_preference(workload):
        head = 1.0 if workload.method == "full" else 0.0
        copied = 0.0 if strategy.framework == "ddp" else k.compute  # under autocast the head stays float32
        return tiled_logits_bytes(tokens, vocabulary, model.hidden_size, k.compute, head, copied), 0.0 * tokens
    if workload.fused_cross_entropy and strategy.framework != "megatron":
        return chunked_logits_bytes(tokens, model.hidden_size, vocabulary), 0.0 * tokens
    if workload.kernels in FUSED_LOSS and strategy.framework != "megatron":
        return fused_logits_bytes(tokens, vocabulary, k.compute, 1.0), 0.0 * tokens
    fused = workload.fused_cross_entropy and strategy.framework == "megatron"
    if fused and workload.fused_loss == "te":
        return in_place_logits_bytes(tokens, vocabulary, k.compute, strategy.tp), 0.0 * tokens
    if fused or (workload.engine == "nanotron" and strategy.framework == "megatron"):
        # Megatron's compiled loss and nanotron's do not work in place on the float32 copy
        return logits_bytes(tokens, vocabulary, k.compute, strategy.tp), 0.0 * tokens
    if strategy.framework == "megatron" or workload.kernels == "megatron":
        return vocabulary_parallel_logits_bytes(tokens, vocabulary, k.compute, strategy.tp), 0.0 * tokens
    # backward holds log-probabilities, the gradient that picks the target, and the full gradient: 12 bytes
    return logits_bytes(tokens, vocabulary, k.compute, 1.0), tokens * vocabulary * (4.0 - k.compute)
