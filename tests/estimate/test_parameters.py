"""Exact parameter counts: published totals, identities between the formulas, and what a shape may do."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.decode import decode_config
from toolkit.equation import trace
from toolkit.estimate.matrices import matrices
from toolkit.estimate.parameters import count_parameters
from toolkit.model import ModelSpec

TABLE = json.loads((Path(__file__).parents[1] / "published" / "parameter_counts.json").read_text())["models"]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_published_totals(row: dict[str, Any]) -> None:
    count = count_parameters(decode_config(row["config"], row["name"]))
    assert count.total == row["total"]
    assert count.active == row.get("active", row["total"])
    assert sum(count.by_part().values()) == row["total"]
    if "parts" in row:
        assert count.other["vision"] == row["parts"]["vision"]
        assert count.other["projector"] == row["parts"]["projector"]
        assert count.total - sum(count.other.values()) == row["parts"]["language_with_head"]


LLAMA = {"model_type": "llama", "tie_word_embeddings": False}


def llama(**keys: Any) -> int:
    return count_parameters(decode_config(LLAMA | keys, "llama")).total


def test_grouped_queries_are_not_forgotten() -> None:
    """Llama-2-70B: four h x h attention matrices would give 78 billion."""
    shape = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    assert llama(**shape, num_key_value_heads=8, vocab_size=32000) == 68_976_648_192
    assert llama(**shape, vocab_size=32000) > 77e9


def test_a_tied_head_counts_once() -> None:
    """llama2.c's 15M model: its state dict sums to 24,407,712, of which 32,000 x 288 is the head again."""
    shape = {"hidden_size": 288, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 6}
    tied = count_parameters(decode_config(LLAMA | shape | {"vocab_size": 32000, "tie_word_embeddings": True}, "15M"))
    assert tied.total == 15_191_712
    assert tied.head == 0
    assert llama(**shape, vocab_size=32000) == 24_407_712


@pytest.mark.parametrize(
    ("config", "total"),
    [
        ({"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
          "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
          "tie_word_embeddings": True}, 4_022_468_096),
        ({"model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
          "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
          "tie_word_embeddings": False}, 32_762_123_264),
        ({"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 14336, "num_hidden_layers": 40,
          "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
          "tie_word_embeddings": False}, 12_247_782_400),
    ],
    ids=["qwen3-4b", "qwen3-32b", "mistral-nemo"],
)  # fmt: skip
def test_head_dim_is_not_always_width_by_heads(config: dict[str, Any], total: int) -> None:
    assert count_parameters(decode_config(config, "x")).total == total


def test_head_dim_null_counts_as_absent() -> None:
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert llama(**shape, vocab_size=100, head_dim=None) == llama(**shape, vocab_size=100, head_dim=16)


def test_expert_width_is_not_the_dense_width() -> None:
    """Qwen3-30B-A3B has intermediate_size 6144 beside experts of 768; 6144 would make the experts 232 billion."""
    config = {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "tie_word_embeddings": False,
    }  # fmt: skip
    count = count_parameters(decode_config(config, "qwen3-30b-a3b"))
    assert (count.total, count.active) == (30_532_122_624, 3_353_032_704)


FALCON = {"model_type": "falcon", "vocab_size": 65024, "bias": False, "alibi": False, "tie_word_embeddings": True}


@pytest.mark.parametrize("key_value_heads", [{}, {"num_kv_heads": 71}, {"num_kv_heads": 8}])
def test_falcon_7b_has_one_key_value_head_whatever_num_kv_heads_says(key_value_heads: dict[str, int]) -> None:
    shape = {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "multi_query": True}
    config = FALCON | shape | {"new_decoder_architecture": False, "parallel_attn": True} | key_value_heads
    spec = decode_config(config, "falcon-7b")
    assert spec.num_key_value_heads == 1
    assert count_parameters(spec).total == 6_921_720_704


def test_falcon_180b() -> None:
    shape = {"hidden_size": 14848, "num_hidden_layers": 80, "num_attention_heads": 232, "num_kv_heads": 8}
    config = FALCON | shape | {"multi_query": True, "new_decoder_architecture": True, "parallel_attn": True}
    assert count_parameters(decode_config(config, "falcon-180b")).total == 178_557_088_768


def test_the_largest_module_of_gpt_j_is_its_head() -> None:
    """What DeepSpeed's estimators call largest_layer_params: 4,096 x 50,400 weights and 50,400 biases."""
    config = {"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400}
    count = count_parameters(decode_config(config | {"tie_word_embeddings": False}, "gpt-j-6b"))
    assert count.total == 6_050_882_784
    assert count.largest_module == 206_488_800


flags = st.booleans()


@st.composite
def shapes(draw: st.DrawFn) -> ModelSpec:
    layers, heads = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 4, 6]))
    experts = draw(st.sampled_from([0, 4]))
    letters = st.text("DE-" if experts else "D-", min_size=layers, max_size=layers)
    latent = draw(flags)
    return ModelSpec(
        name="any",
        num_hidden_layers=layers,
        hidden_size=8 * draw(st.integers(1, 9)),
        intermediate_size=draw(st.integers(1, 50)),
        num_attention_heads=heads,
        num_key_value_heads=draw(st.sampled_from([k for k in (1, 2, 3, heads) if heads % k == 0])),
        head_dim=draw(st.integers(1, 16)),
        vocab_size=draw(st.integers(1, 200)),
        tie_word_embeddings=draw(flags),
        gated_mlp=draw(flags),
        attention_bias=draw(flags),
        attention_output_bias=draw(flags) and not latent,
        mlp_bias=draw(flags),
        norm_bias=draw(flags),
        norms_per_layer=draw(st.integers(0, 4)),
        qk_norm=draw(st.sampled_from(["none", "head", "full"])),
        attention_output_gate=draw(flags),
        attention_sinks=draw(flags),
        fused_qkv=draw(flags),
        fused_gate_up=draw(flags),
        learned_positions=draw(st.sampled_from([0, 32])),
        num_experts=experts,
        num_experts_per_tok=2 if experts else 0,
        moe_intermediate_size=draw(st.integers(1, 20)) if experts else 0,
        shared_expert_intermediate_size=draw(st.integers(0, 20)) if experts else 0,
        router_bias=draw(flags),
        kv_lora_rank=draw(st.integers(1, 9)) if latent else 0,
        q_lora_rank=draw(st.integers(0, 9)) if latent else 0,
        qk_nope_head_dim=draw(st.integers(1, 9)) if latent else 0,
        qk_rope_head_dim=draw(st.integers(1, 9)) if latent else 0,
        v_head_dim=draw(st.integers(1, 9)) if latent else 0,
        mixers=draw(st.text("A-", min_size=layers, max_size=layers)),
        mlps=draw(letters),
    )


@given(shapes())
def test_parts_sum_to_the_total_and_active_is_less(model: ModelSpec) -> None:
    count = count_parameters(model)
    assert sum(count.by_part().values()) == count.total
    assert count.active <= count.total
    assert count.active == count.total - sum(
        layer.routed_experts - layer.routed_experts_active for layer in count.layers
    )
    assert len(count.layers) == model.num_hidden_layers
    assert count.largest_tensor <= count.largest_module <= count.total


@given(shapes())
def test_the_list_of_matrices_and_the_formulas_agree(model: ModelSpec) -> None:
    """Two independent descriptions: formulas by layer, and matrices by name; vectors are the difference."""
    count = count_parameters(model)
    listed = sum(m.number * m.elements for m in matrices(model))
    biases = sum(m.number * m.bias for m in matrices(model))
    attention = model.mixers.count("A")
    norms = model.num_hidden_layers * model.norms_per_layer * model.hidden_size * (1 + model.norm_bias)
    if model.is_mla:
        vectors = attention * (model.q_lora_rank + model.kv_lora_rank)
    else:
        wide = {"none": 0, "head": 2, "full": model.num_attention_heads + model.num_key_value_heads}[model.qk_norm]
        vectors = attention * (wide * model.head_dim + model.attention_sinks * model.num_attention_heads)
    layers = sum(layer.total for layer in count.layers)
    assert layers == listed + biases + norms + vectors


@given(shapes())
def test_fusing_matrices_changes_no_count(model: ModelSpec) -> None:
    fused = msgspec.structs.replace(model, fused_qkv=True, fused_gate_up=True)
    apart = msgspec.structs.replace(model, fused_qkv=False, fused_gate_up=False)
    assert count_parameters(fused).total == count_parameters(apart).total
    assert count_parameters(fused).largest_tensor >= count_parameters(apart).largest_tensor


@settings(max_examples=30)
@given(shapes())
def test_counting_again_or_under_trace_gives_the_same(model: ModelSpec) -> None:
    first = count_parameters(model)
    with trace() as steps:
        traced = count_parameters(model)
    assert traced == first == count_parameters(msgspec.structs.replace(model))
    assert {step.anchor for step in steps} >= {"P1", "P15"}


def test_counted_layers_are_taken_as_they_are() -> None:
    rows = ((10, 2, 40, 10), (7, 1, 0, 0))
    model = ModelSpec(
        name="odd", num_hidden_layers=2, hidden_size=4, intermediate_size=4, num_attention_heads=1,
        num_key_value_heads=1, head_dim=4, vocab_size=3, num_experts=4, num_experts_per_tok=1, mlps="ED",
        counted_layers=rows, counted_largest_tensor=40,
    )  # fmt: skip
    count = count_parameters(model)
    assert count.total == 2 * 12 + 4 + 60
    assert count.active == count.total - 30
    assert count.largest_tensor == 40
