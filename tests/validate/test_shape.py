"""The model of a row: registered, kin of a registered one, or the columns alone."""

from __future__ import annotations

import pytest

from tests.validate.runs import LOOKUPS, job, reason
from toolkit.estimate.parameters import count_parameters

BLANK = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")


def test_a_registered_name_needs_no_columns() -> None:
    registered = LOOKUPS.models.find("llama-3-8b")
    assert registered is not None
    made = job(**BLANK).model
    assert count_parameters(made).total == count_parameters(registered).total


def test_depth_vocabulary_and_tying_are_the_rows() -> None:
    made = job(model="llama-3-8b-proxyL4", layers=4, vocab=1000, tied="1").model
    assert (made.num_hidden_layers, made.vocab_size, made.tie_word_embeddings) == (4, 1000, True)
    assert made.intermediate_size == 14336 and made.gated_mlp


def test_a_contradicted_name_is_left_to_the_columns() -> None:
    assert job(hidden=2048, heads=16, kv_heads=16).model.hidden_size == 2048


def test_a_mixture_takes_what_columns_cannot_say_from_its_kin() -> None:
    experts = {"hidden": 7168, "heads": 128, "kv_heads": 128, "ffn": 2048, "n_experts": 256, "top_k": 8}
    made = job(model="some-14-layer-moe", layers=14, vocab=129280, ep=8, **experts)
    assert made.model.is_mla and made.model.num_hidden_layers == 14 == len(made.model.layer_mlps)
    assert any("deepseek-v3" in said for said in made.assumed)


@pytest.mark.parametrize(
    ("model", "params", "ffn", "gated"),
    [("mine", 6.74, 11008, True), ("mine", 5.1, 11008, False), ("mine", "", 11008, True), ("mine", "", 16384, False)],
)
def test_the_parameter_count_says_whether_the_mlp_is_gated(model: str, params: object, ffn: int, gated: bool) -> None:
    """Llama-2-7B's widths make 6.74B parameters with a gate and 5.3B without."""
    made = job(model=model, params_b=params, ffn=ffn, kv_heads=32, vocab=32000, tied="0", layers=32).model
    assert made.gated_mlp is gated


def test_a_plain_mlp_is_a_gpt() -> None:
    made = job(model="gpt-x", params_b="", ffn="", kv_heads="", vocab="", seq_len=2048).model
    assert (made.intermediate_size, made.num_key_value_heads, made.vocab_size) == (4 * 4096, 32, 51200)
    assert made.norm_bias and made.mlp_bias and made.learned_positions == 2048 and made.tie_word_embeddings


def test_what_cannot_be_known_is_a_reason() -> None:
    assert (
        reason(model="nobody", layers="", heads="") == "missing: layers, heads, and 'nobody' is not a registered model"
    )
    assert "state-space" in reason(model="my-hybrid")
    assert "top_k" in reason(model="moe", n_experts=8)
