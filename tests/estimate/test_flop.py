"""FLOP counts against published formulas, exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.machines import gpt, llama, mixture
from toolkit.estimate.flop import (
    attended_executed,
    forward_flop_per_token,
    matrices,
    model_flop_per_token,
    recomputed_flop,
)
from toolkit.estimate.parameters import count_parameters, lora_parameters
from toolkit.model import ModelSpec
from toolkit.workload import Workload


@given(
    layers=st.integers(1, 128),
    heads=st.integers(1, 160),
    sequence=st.sampled_from([512, 1024, 2048, 8192]),
    vocab=st.sampled_from([50304, 51200, 128256]),
)
def test_narayanan_equation_3(layers: int, heads: int, sequence: int, vocab: int) -> None:
    """96 B s l h^2 (1 + s/6h + V/16lh) with full recomputation: arXiv 2104.04473, equation 3."""
    hidden = 128 * heads
    batch = 512
    forward = forward_flop_per_token(gpt(layers, hidden, heads, vocab), Workload(sequence_length=sequence))
    ours = batch * sequence * (3 * forward.total + recomputed_flop(2, forward.layers, forward.attention))
    h, s, big = float(hidden), float(sequence), float(vocab)
    theirs = 96.0 * batch * s * layers * h * h * (1 + s / (6 * h) + big / (16 * layers * h))
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_palm_convention() -> None:
    """6N + 12 L H d s per token (arXiv 2204.02311, appendix B), N without the embedding table."""
    model, workload = llama(), Workload(sequence_length=8192)
    counted = count_parameters(model)
    norms = (2 * 32 + 1) * 4096
    weights = counted.total - counted.embedding - norms
    assert model_flop_per_token(model, workload) == pytest.approx(6.0 * weights + 12.0 * 32 * 4096 * 8192, rel=1e-12)


def test_llama_405b_matches_its_paper() -> None:
    """3.8e25 FLOP for 15.6 T tokens with 405 B parameters: arXiv 2407.21783, section 1."""
    model = gpt(
        126,
        16384,
        128,
        128256,
        num_key_value_heads=8,
        intermediate_size=53248,
        gated_mlp=True,
        tie_word_embeddings=False,
    )
    flop = 15.6e12 * model_flop_per_token(model, Workload(sequence_length=8192))
    assert flop == pytest.approx(3.8e25, rel=0.1)


@pytest.mark.parametrize("model", [gpt(12, 768, 12), llama(), mixture()], ids=lambda model: model.name)
def test_matrices_hold_the_parameters(model: ModelSpec) -> None:
    """Every weight matrix that the parameter count knows is multiplied, and nothing else."""
    counted = count_parameters(model)
    held = sum(
        m.elements * m.layers * (model.num_experts if m.cut.startswith("expert") else 1)
        for m in matrices(model)
        if m.part != "head"
    )
    vectors = (2 * model.num_hidden_layers + 1) * model.hidden_size
    assert held == counted.total - counted.embedding - counted.head - vectors


def test_only_chosen_experts_count() -> None:
    """A token passes through 4 of 64 experts."""
    model = mixture()
    forward = forward_flop_per_token(model, Workload())
    assert forward.experts == 2.0 * 7 * 4 * 3 * 1024 * 512


def test_latent_attention_has_its_own_widths() -> None:
    """DeepSeek-V3: scores 192 wide, values 128 wide, 128 heads."""
    model = gpt(
        1,
        7168,
        128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    forward = forward_flop_per_token(model, Workload(sequence_length=4096))
    assert forward.attention == 2.0 * 128 * (192 + 128) * 4096


def test_a_window_caps_attention() -> None:
    """Mistral-7B: no token attends beyond 4096; layers without a window keep the whole sequence."""
    windowed = llama().__class__(**{**_fields(llama()), "sliding_window": 4096, "sliding_window_layers": 8})
    whole = forward_flop_per_token(llama(), Workload(sequence_length=32768)).attention
    part = forward_flop_per_token(windowed, Workload(sequence_length=32768)).attention
    assert part == whole * (24 + 8 * 4096 / 32768) / 32


def _fields(model: ModelSpec) -> dict[str, object]:
    return {name: getattr(model, name) for name in model.__struct_fields__}


@given(sequence=st.integers(1, 1 << 20), window=st.integers(0, 1 << 20))
def test_a_causal_mask_halves(sequence: int, window: int) -> None:
    """Mean over queries of the keys they see: between half and all of the window."""
    attended = attended_executed(sequence, window)
    limit = min(sequence, window) if window else sequence
    assert limit / 2 <= attended <= limit


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_adapters_need_two_thirds(method: str) -> None:
    """4N instead of 6N for the frozen base, 6 for each adapter weight."""
    model = llama()
    full = Workload(sequence_length=2048)
    adapted = Workload(sequence_length=2048, method=method, lora_rank=16)
    attention = forward_flop_per_token(model, full).attention
    saved = model_flop_per_token(model, full) - model_flop_per_token(model, adapted)
    base = (model_flop_per_token(model, full) - 3 * attention) / 6
    assert saved == pytest.approx(2 * base - 6 * lora_parameters(model, 16), rel=1e-12)
