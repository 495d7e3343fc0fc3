"""Another global batch: the rate follows by its rule, the tokens stay, the warm-up is shorter in nothing."""

import math
import re

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from recipes.schedule import learning_rate
from toolkit.batch_scaling import exponent, rescaled
from toolkit.errors import ToolkitError
from toolkit.recipe import CHOICES, Contract, contract_sha256, planned_steps, warmup_steps

BASE = Contract(
    sequence_length=128, global_batch_size=64, learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=100,
    total_steps=10_000,
)  # fmt: skip
BATCHES = st.integers(1, 4096)


def test_four_times_the_batch_is_twice_the_rate_of_adam_and_four_times_that_of_sgd() -> None:
    adam, sgd = rescaled(BASE, 256), rescaled(msgspec.structs.replace(BASE, optimizer="sgd"), 256)
    assert (adam.contract.learning_rate, adam.contract.min_learning_rate) == pytest.approx((2e-3, 2e-4), rel=1e-12)
    assert (sgd.contract.learning_rate, sgd.contract.min_learning_rate) == pytest.approx((4e-3, 4e-4), rel=1e-12)
    assert (adam.contract.total_steps, adam.contract.warmup_steps) == (2500, 100)


def test_old_and_new_values_are_said_with_their_sources() -> None:
    said = "\n".join(rescaled(BASE, 256).said)
    for words in ("64 -> 256", "0.001 -> 0.002", "0.0001 -> 0.0002", "10,000 -> 2,500", "819,200", "3,276,800"):
        assert words in said, words
    assert "arXiv:2205.10287" in said and "arXiv:1910.04209" in said
    linear = "\n".join(rescaled(msgspec.structs.replace(BASE, optimizer="sgd"), 256).said)
    assert "arXiv:1706.02677" in linear and "2205.10287" not in linear


@pytest.mark.parametrize("optimizer", CHOICES["optimizer"])
def test_every_optimizer_has_a_rule_or_a_sentence(optimizer: str) -> None:
    if optimizer == "muon":
        with pytest.raises(ToolkitError, match="no published rule"):
            exponent(optimizer)
    else:
        assert exponent(optimizer) == (1.0 if optimizer == "sgd" else 0.5)


@given(batch=BATCHES, optimizer=st.sampled_from(["adamw", "adamw_8bit", "sgd"]))
def test_tokens_stay_and_the_warm_up_is_never_shorter(batch: int, optimizer: str) -> None:
    old = msgspec.structs.replace(BASE, optimizer=optimizer)
    new = rescaled(old, batch).contract
    assert 0 <= new.total_steps * batch - old.total_steps * 64 < batch  # sequences, rounded up to a step
    assert new.warmup_steps >= old.warmup_steps
    assert new.warmup_steps * batch >= old.warmup_steps * 64
    assert new.warmup_steps == old.warmup_steps or (new.warmup_steps - 1) * batch < old.warmup_steps * 64
    assert new.learning_rate / new.min_learning_rate == pytest.approx(10.0)
    total = planned_steps(new)
    assert max(learning_rate(step, total, new) for step in (warmup_steps(new, total), total)) == pytest.approx(
        old.learning_rate * (batch / 64) ** exponent(optimizer)
    )


@given(batch=BATCHES)
def test_nothing_else_changes_and_every_other_batch_is_another_experiment(batch: int) -> None:
    new = rescaled(BASE, batch).contract
    follow = {"global_batch_size", "learning_rate", "min_learning_rate", "total_steps", "warmup_steps"}
    for name in set(BASE.__struct_fields__) - follow:
        assert getattr(new, name) == getattr(BASE, name), name
    assert (contract_sha256(new) == contract_sha256(BASE)) == (batch == 64)


@given(batch=BATCHES)
def test_there_and_back_is_the_same_rate(batch: int) -> None:
    assume(rescaled(BASE, batch).contract.total_steps > 0)
    epochs = msgspec.structs.replace(BASE, total_steps=0, epochs=3.0)
    back = rescaled(rescaled(epochs, batch).contract, 64).contract
    assert back.learning_rate == pytest.approx(BASE.learning_rate, rel=1e-12)
    assert back.epochs == 3.0


@given(batch=st.integers(1, 2000), share=st.floats(0.001, 0.5))
def test_a_share_of_warm_up_follows_the_same_rule(batch: int, share: float) -> None:
    old = msgspec.structs.replace(BASE, warmup_steps=0, warmup_fraction=share, total_steps=0, epochs=1.0)
    k = batch / 64
    if share * k >= 1.0:
        with pytest.raises(ToolkitError, match="the whole run would be warm-up"):
            rescaled(old, batch)
        return
    new = rescaled(old, batch).contract
    assert new.warmup_fraction == pytest.approx(share * max(1.0, k))
    steps = 64_000  # of the old run, over the same data
    assert warmup_steps(new, math.ceil(steps / k)) >= 0.999 * warmup_steps(old, steps) - 1


@pytest.mark.parametrize(
    "old", [BASE, msgspec.structs.replace(BASE, warmup_steps=0, warmup_fraction=0.1, total_steps=0)]
)
def test_a_batch_that_leaves_only_warm_up_is_refused_with_one_that_does_not(old: Contract) -> None:
    with pytest.raises(ToolkitError, match="the whole run would be warm-up") as caught:
        rescaled(old, 10**6)
    found = re.search(r"at most (\d+)", caught.value.problems[0].remedy)
    assert found and rescaled(old, int(found[1])).contract.global_batch_size == int(found[1])
