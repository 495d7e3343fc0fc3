"""Model sizes as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.model_sizes import read_size
from toolkit.units import format_count

READ = {
    "7B": 7e9, "7b": 7e9, "6.7e9": 6.7e9, "1.3 B": 1.3e9, "1.3B": 1.3e9, "350M": 3.5e8, "405b": 4.05e11, "1T": 1e12,
    "1.5t": 1.5e12, "671B": 6.71e11, "70B-instruct": 7e10, "7000000000": 7e9, "7_000_000_000": 7e9,
    "7,000,000,000": 7e9, "7 billion": 7e9, "7bn": 7e9, "1.5 trillion": 1.5e12, "7B parameters": 7e9, "+7B": 7e9,
    # names: a whole token of the last part of the path
    "meta-llama/Llama-2-7b-hf": 7e9, "meta-llama/Llama-2-13b-hf": 13e9, "13B": 13e9, "0.5B": 0.5e9,
    "Qwen/Qwen2.5-0.5B": 0.5e9, "7b/qwen3.5-35b-a3b": 35e9, "unsloth/Qwen3-1.7B-bnb-4bit": 1.7e9,
    "google/gemma-3-1b-it": 1e9, "gemma-3n-E4B-it": 4e9, "llama-2-7b.Q4_K_M.gguf": 7e9,
    "TinyLlama-1.1B-intermediate-step-1431k-3T": 1.1e9, "Phi-3-mini-3.8B-128k": 3.8e9,
    # the product of experts and size is not the count
    "8x7B": 46_702_792_704, "mistralai/Mixtral-8x7B-Instruct-v0.1": 46_702_792_704, "8x22b": 140_630_071_296,
}  # fmt: skip


@pytest.mark.parametrize(("text", "parameters"), READ.items())
def test_read(text: str, parameters: float) -> None:
    assert read_size(text).parameters == parameters


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("70", "did you mean 70B"),
        ("1.5", "did you mean 1.5B"),
        ("abc35b!!", "neither a size nor a model's name"),
        ("abc35b", "does not tell a size"),
        ("-7B", "neither"),
        ("0B", "not a possible number"),
        ("NaN", "does not tell"),
        ("inf", "does not tell"),
        ("", "empty"),
        ("   ", "empty"),
        ("phi3:mini", "does not tell"),
        ("tinyllama", "does not tell"),
        ("16x12B", "experts x size"),
        ("Qwen1.5-MoE-A2.7B", "only its active size"),
        ("Llama-4-Scout-17B-16E", "active size, not the total"),
        ("llama-7b-13b", "several sizes"),
        ("80GB", "amount of memory"),
        ("7GiB", "amount of memory"),
        ("1e99", "not a possible number"),
        ("\uff17B", "neither"),
        ("7,00B", "neither"),
        ("7B\n8B", "neither"),
        ("7B 8B", "several sizes"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        read_size(text)
    assert said in str(caught.value)


def test_what_was_assumed_is_told() -> None:
    assert "instruct ignored" in read_size("70B-instruct").notes[0]
    assert "effective size" in read_size("gemma-3n-E4B-it").notes[0]
    assert "not their product" in read_size("8x7B").notes[0]
    assert read_size("7B").notes == ()


@given(st.text(max_size=40))
def test_any_text_is_a_count_or_a_sentence(text: str) -> None:
    try:
        assert 1 <= read_size(text).parameters <= 1e15
    except ToolkitError as error:
        assert error.problems[0].message


@given(st.integers(1, 10**15))
def test_counts_are_shown_in_three_digits_and_read_back(count: int) -> None:
    shown = format_count(count)
    assert len(shown) <= 6
    value = float(shown.rstrip("KMBT")) * {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(shown[-1], 1.0)
    assert math.isclose(value, count, rel_tol=0.0051)


def test_counts_as_people_say_them() -> None:
    said = {6_738_415_616: "6.74B", 350_000_000: "350M", 1_026_408_209_408: "1.03T", 999_885_952: "1B", 998: "998"}
    assert {count: format_count(count) for count in said} == said
