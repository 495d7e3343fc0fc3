"""Modules of selective recomputation: what they free, and what runs again."""

from __future__ import annotations

import msgspec
import pytest

from tests.estimate.shapes import (
    GIB,
    LLAMA_7B,
    LLAMA_70B,
    MIB,
    MIXTURE,
    activations_of,
    llama,
    megatron,
    of_stages,
    published,
    transient,
)
from toolkit.errors import ToolkitError
from toolkit.estimate.flop import forward_flop_per_token
from toolkit.estimate.layer_bytes import layer_bytes
from toolkit.estimate.precision import eight_bit_weights
from toolkit.estimate.redone import selective_flop
from toolkit.estimate.selective import MODULES, modules, selective_bytes
from toolkit.model import ModelSpec
from toolkit.workload import Workload

LATENT = llama(
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    num_attention_heads=128,
    num_key_value_heads=128,
)


def again(names: str) -> Workload:
    return Workload(recompute_modules=names)


def freed(model: ModelSpec, names: str, mlp: str) -> float:
    """Bytes per token of one layer that modules free."""
    work = again(names)
    everything = layer_bytes(model, work, "megatron", "A", mlp)
    return everything.total - selective_bytes(model, work, "megatron", "A", mlp).total


def test_dry_run_of_megatron_core_with_the_mlp_recomputed() -> None:
    """Llama-70B, stage 0 of 4; --recompute-modules mlp. Temporaries of the forward pass that runs again are missing."""
    work = msgspec.structs.replace(again("mlp"), fused_accumulation=False)
    found = of_stages(LLAMA_70B, work, megatron(recompute=1))[0]
    figure = published("megatron_memory.toml")["dry_run"]["recompute_mlp"]["peak_above_static_mib"]
    assert transient(found) / MIB == pytest.approx(figure, rel=0.08)


def test_allocated_bytes_of_a_published_run() -> None:
    """65B, activation of the MLP and norms recomputed: max_memory_allocated on 256 H800, to the byte in its log."""
    run = published("megatron_memory.toml")["kwai_65b"]
    model = llama(
        num_hidden_layers=80, hidden_size=8192, intermediate_size=22016, vocab_size=32004,
        num_attention_heads=64, num_key_value_heads=64,
    )  # fmt: skip
    work = msgspec.structs.replace(again("layernorm+mlp_act"), sequence_length=8192)
    strategy = megatron(
        tp=2, etp=2, pp=8, cp=2, dp=8, dp_shard=8, virtual_pipeline_stages=5,
        recompute=1, gradient_accumulation_steps=32,
    )  # fmt: skip
    found = of_stages(model, work, strategy)[0]
    assert found.total_bytes - found.framework_bytes == pytest.approx(run["allocated_bytes"], rel=0.02)


def test_what_modules_free() -> None:
    """Two bytes a value: norms feed two matrices of width h, activations one of width f."""
    h, f = LLAMA_7B.hidden_size, LLAMA_7B.intermediate_size
    assert freed(LLAMA_7B, "layernorm", "D") == 2 * 2 * h
    assert freed(LLAMA_7B, "mlp_act", "D") == 2 * f
    assert freed(LLAMA_7B, "mlp", "D") == 3 * 2 * f
    assert freed(MIXTURE, "moe_act", "E") == 6 * 2 * MIXTURE.moe_intermediate_size
    assert freed(MIXTURE, "shared_experts", "E") == 3 * 2 * MIXTURE.shared_expert_intermediate_size
    assert freed(LATENT, "mla_up_proj", "D") == 2 * 128 * (2 * (128 + 64) + 128)


def test_a_recomputed_layer_of_experts_keeps_its_input() -> None:
    attention = selective_bytes(MIXTURE, again("moe"), "megatron", "A", "-").total
    h = MIXTURE.hidden_size
    assert selective_bytes(MIXTURE, again("moe"), "megatron", "A", "E").total == attention + 2 * h
    assert selective_bytes(MIXTURE, again("layernorm+moe"), "megatron", "A", "E").total == attention - 2 * h


@pytest.mark.parametrize("names", MODULES)
@pytest.mark.parametrize(("model", "mlp"), [(LLAMA_7B, "D"), (MIXTURE, "E"), (MIXTURE, "D"), (LATENT, "D")])
def test_no_module_frees_more_than_there_is(names: str, model: ModelSpec, mlp: str) -> None:
    kept = selective_bytes(model, again(names), "megatron", "A", mlp)
    assert min(kept) >= 0.0
    if names != "core_attn":  # with flash attention it keeps more
        assert freed(model, names, mlp) >= 0.0


def test_less_is_kept_with_more_modules() -> None:
    one = megatron(tp=1, etp=1, pp=1, sequence_parallel=0, recompute=1)
    kept = [activations_of(MIXTURE, again(names), one).kept for names in ("moe_act", "layernorm+moe_act", "moe")]
    assert kept == sorted(kept, reverse=True)


def test_flop_again() -> None:
    """Core attention alone costs its scores; an MLP its products; norms and activations none."""
    forward = forward_flop_per_token(LLAMA_7B, again("core_attn"))
    assert selective_flop(LLAMA_7B, again("core_attn"), forward, "megatron") == forward.attention
    assert selective_flop(LLAMA_7B, again("layernorm+mlp_act"), forward, "megatron") == 0.0
    products = 32 * 2.0 * 3 * LLAMA_7B.hidden_size * LLAMA_7B.intermediate_size
    assert selective_flop(LLAMA_7B, again("mlp"), forward, "megatron") == pytest.approx(products)
    mixture = forward_flop_per_token(MIXTURE, again("moe"))
    shared = 22 * 2.0 * 3 * MIXTURE.hidden_size * MIXTURE.shared_expert_intermediate_size
    router = 22 * 2.0 * MIXTURE.hidden_size * MIXTURE.num_experts
    assert selective_flop(MIXTURE, again("moe"), mixture, "megatron") == pytest.approx(
        mixture.experts + shared + router
    )
    assert selective_flop(MIXTURE, again("shared_experts"), mixture, "megatron") == pytest.approx(shared)


def test_flop_again_by_operators() -> None:
    """torchtitan's policy: of query, key, value, output, gate, up and down the second, fourth and sixth."""
    h, f = LLAMA_7B.hidden_size, LLAMA_7B.intermediate_size
    forward = forward_flop_per_token(LLAMA_7B, again("core_attn"))
    again_by_operators = selective_flop(LLAMA_7B, again("core_attn"), forward, "fsdp")
    assert again_by_operators == pytest.approx(32 * 2.0 * (2 * h * h + h * f))
    assert selective_flop(LLAMA_7B, again("mlp"), forward, "fsdp") == pytest.approx(32 * 2.0 * 3 * h * f)


def test_unknown_module() -> None:
    with pytest.raises(ToolkitError, match="unknown module to recompute 'mpl'"):
        modules(again("mpl+norm"))


def test_matrices_in_eight_bits_alone_are_smaller() -> None:
    """fp8_param_gather: an 8-bit copy and its transpose, 2 bytes; else the 16-bit weights stay, 4 bytes."""
    one = megatron(tp=1, etp=1, pp=1, sequence_parallel=0)
    both, alone = (
        of_stages(LLAMA_7B, Workload(precision="fp8", weights=weights), one)[0] for weights in ("default", "fp8")
    )
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
    assert both.parameters_bytes - alone.parameters_bytes == pytest.approx(2.0 * matrices)
    assert alone.parameters_bytes / GIB == pytest.approx(12.55, abs=0.01)
    with pytest.raises(ToolkitError, match="fp8 alone"):
        eight_bit_weights(Workload(precision="bf16", weights="fp8"), "megatron")
