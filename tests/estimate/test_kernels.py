"""Kernels and weights that a framework does not bring by itself: fused losses, Megatron's layers, bf16 alone."""

from __future__ import annotations

import msgspec
import pytest

from tests.estimate.shapes import GPT_7B, MIXTURE, activations_of, llama
from toolkit.errors import ToolkitError
from toolkit.estimate.layer_bytes import kernels, layer_bytes
from toolkit.estimate.precision import state_precision
from toolkit.registry.models import load_model
from toolkit.strategy import Strategy
from toolkit.workload import Workload

LENGTH = 2048
PLAIN = Workload(sequence_length=LENGTH)
FUSED = msgspec.structs.replace(PLAIN, kernels="fused")
MEGATRON = msgspec.structs.replace(PLAIN, kernels="megatron")
PURE = msgspec.structs.replace(PLAIN, weights="bf16")
SHARDED = Strategy(framework="fsdp", dp=8, dp_shard=8, zero_stage=3)


def test_a_gpt_layer_keeps_korthikantis_34_h_less_masks_and_scores() -> None:
    """arXiv 2205.05198, section 4.1: 34 s b h + 5 a s^2 b; without dropout and with fused attention 32 h."""
    kept = layer_bytes(GPT_7B, FUSED, "fsdp", "A", "D")
    assert kept.total == 32.0 * GPT_7B.hidden_size + 4.0 * GPT_7B.num_attention_heads


def test_a_layer_norm_without_a_bias_is_no_rms_norm() -> None:
    for name in ("mpt-7b", "dbrx"):
        bare = load_model(name)
        biased = msgspec.structs.replace(bare, norm_bias=True, unbiased_layer_norm=False)
        mlp = bare.layer_mlps[0]
        assert layer_bytes(bare, PLAIN, "fsdp", "A", mlp) == layer_bytes(biased, PLAIN, "fsdp", "A", mlp)
        rms = msgspec.structs.replace(bare, unbiased_layer_norm=False)
        assert layer_bytes(bare, PLAIN, "fsdp", "A", mlp) != layer_bytes(rms, PLAIN, "fsdp", "A", mlp)


def test_a_fused_loss_holds_logits_and_their_gradient_in_16_bits() -> None:
    values = 1.0 * LENGTH * GPT_7B.vocab_size
    eager, fused, megatron = (activations_of(GPT_7B, w, SHARDED) for w in (PLAIN, FUSED, MEGATRON))
    assert fused.logits + fused.loss_workspace == 4.0 * values
    assert megatron.logits + megatron.loss_workspace == 6.0 * values
    assert eager.logits + eager.loss_workspace == 12.0 * values


@pytest.mark.parametrize("model", [GPT_7B, MIXTURE, llama()], ids=lambda m: m.name)
def test_megatrons_layers_keep_the_same_whoever_shards_them(model: object) -> None:
    assert kernels(model, MEGATRON, "fsdp") == kernels(model, PLAIN, "megatron")  # type: ignore[arg-type]


def test_bf16_alone_takes_eight_bytes_a_parameter() -> None:
    for framework in ("ddp", "fsdp"):
        found = state_precision(PURE, framework)
        assert (found.parameters, found.gradients, found.master, found.optimizer_states) == (2.0, 2.0, 0.0, 4.0)
    blockwise = msgspec.structs.replace(PURE, optimizer="adamw_8bit")
    assert (
        state_precision(blockwise, "ddp").optimizer_states
        == state_precision(msgspec.structs.replace(blockwise, weights="default"), "ddp").optimizer_states
    )
    assert kernels(llama(), PURE, "ddp") == kernels(llama(), PLAIN, "fsdp")  # no autocast: a 16-bit stream


@pytest.mark.parametrize(
    ("changes", "framework", "words"),
    [
        ({"weights": "bf16"}, "megatron", "not modelled"),
        ({"weights": "bf16", "precision": "fp32"}, "ddp", "not modelled"),
        ({"weights": "fp4"}, "ddp", "unknown weights"),
    ],
)
def test_weights_that_cannot_be(changes: dict[str, str], framework: str, words: str) -> None:
    with pytest.raises(ToolkitError, match=words):
        state_precision(msgspec.structs.replace(PLAIN, **changes), framework)


def test_unknown_kernels() -> None:
    with pytest.raises(ToolkitError, match="unknown kernels 'liger'"):
        kernels(GPT_7B, msgspec.structs.replace(PLAIN, kernels="liger"), "fsdp")
