"""What counts as not finite and as a spike: by hand, and for any history."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.record import StepRecord
from toolkit.runtime.divergence import Rules, Watch


def step(number: int, loss: float | None, norm: float | None = 1.0) -> StepRecord:
    return StepRecord(step=number, seconds=1.0, tokens=1, loss=loss, learning_rate=1e-3, gradient_norm=norm)


def known(losses: list[float], **rules: object) -> Watch:
    return Watch(Rules(**rules), [step(number, loss) for number, loss in enumerate(losses, start=1)])


def test_the_rule_by_hand() -> None:
    """Of 1.9, 2.0, 2.1 repeated the median is 2 and MAD 0.1: the limit is 2 + 6 * 1.4826 * 0.1 = 2.88956."""
    losses = [1.9, 2.0, 2.1] * 7
    assert known(losses).look(22, 2.88, 1.0) is None
    found = known(losses).look(22, 2.90, 1.0)
    assert found is not None and (found.kind, found.quantity, found.step) == ("spike", "loss", 22)
    assert found.median == 2.0 and found.limit == pytest.approx(2.88956)
    assert str(found) == "step 22: loss 2.9, the median is 2, the limit 2.89"


@pytest.mark.parametrize("quantity", ["loss", "gradient_norm"])
def test_values_without_spread_have_a_limit_above_them(quantity: str) -> None:
    for factor, found in {"loss": {1.09: False, 1.11: True}, "gradient_norm": {2.9: False, 3.1: True}}[
        quantity
    ].items():
        values = {"loss": 1.0, "gradient_norm": 1.0} | {quantity: factor}
        assert (known([1.0] * 30).look(31, **values) is not None) == found


def test_no_spike_in_the_warm_up_nor_before_there_is_a_history() -> None:
    assert known([1.0] * 19).look(20, 9.0, 1.0) is None
    assert known([1.0] * 20).look(21, 9.0, 1.0) is not None
    assert known([1.0] * 20, warmup_steps=21).look(21, 9.0, 1.0) is None
    assert known([1.0] * 6, window=6).look(7, 9.0, 1.0) is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_what_is_not_finite_is_told_at_any_time(bad: float | None) -> None:
    found = Watch(Rules(warmup_steps=100)).look(1, bad, 1.0)
    assert found is not None and (found.kind, found.quantity, found.value) == ("nan", "loss", None)
    found = Watch(Rules()).look(1, 1.0, bad)
    assert (found is None) if bad is None else (found is not None and found.quantity == "gradient_norm")


def test_an_overflow_of_fp16_is_a_fault_only_where_the_scale_cannot_fall() -> None:
    watch = Watch(Rules())
    assert watch.look(1, 2.0, math.inf, lambda: True) is None
    assert watch.look(2, math.nan, math.nan, lambda: True) is None
    assert watch.look(3, 2.0, math.inf, lambda: False) is not None


def test_what_was_bad_does_not_move_the_rule_and_what_is_undone_is_forgotten() -> None:
    watch = known([2.0, 2.01, 1.99] * 10)
    for number in range(31, 41):
        assert watch.look(number, 50.0, 1.0) is not None  # ten in a row of forty
    watch.back_to(10)
    fresh = known(([2.0, 2.01, 1.99] * 4)[:10])
    for number in range(11, 32):
        loss = 9.0 if number == 31 else 2.0
        assert watch.look(number, loss, 1.0) == fresh.look(number, loss, 1.0)


@given(st.lists(st.floats(0.1, 20.0), min_size=20, max_size=60), st.floats(0.1, 30.0), st.floats(1.0, 1000.0))
def test_what_is_found_does_not_depend_on_the_unit_of_the_loss(values: list, last: float, factor: float) -> None:
    one, two = known(values), known([factor * each for each in values])
    found = one.look(len(values) + 1, last, 1.0)
    if found is None or not math.isclose(last, found.limit, rel_tol=1e-6):
        assert (two.look(len(values) + 1, factor * last, 1.0) is None) == (found is None)


def test_noise_of_a_thousand_steps_is_no_spike_and_each_real_one_is() -> None:
    draw = random.Random(1)
    watch, told = Watch(Rules()), []
    for number in range(1, 1001):
        loss = 3.0 + 5.0 * math.exp(-number / 100.0) + draw.gauss(0.0, 0.05)
        if number in (200, 500, 800):
            loss += 1.5
        if watch.look(number, loss, math.exp(draw.gauss(0.0, 0.3))):
            told.append(number)
    assert told == [200, 500, 800]
