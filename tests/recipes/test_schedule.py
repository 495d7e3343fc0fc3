"""The learning rate by its closed form, and against transformers' own schedules."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.schedule import learning_rate, total_steps
from toolkit.recipe import Contract
from toolkit.schedule import ends_at_minimum, points, used_up_at_step


def contract(schedule: str = "cosine", peak: float = 3e-3, minimum: float = 3e-4, warmup: int = 5) -> Contract:
    return Contract(schedule=schedule, learning_rate=peak, min_learning_rate=minimum, warmup_steps=warmup)


@pytest.mark.parametrize(
    ("schedule", "middle", "end"), [("cosine", 1.65e-3, 3e-4), ("linear", 1.65e-3, 3e-4), ("constant", 3e-3, 3e-3)]
)
def test_the_points_that_everyone_looks_at(schedule: str, middle: float, end: float) -> None:
    settings = contract(schedule)
    at = [learning_rate(step, 105, settings) for step in (0, 1, 5, 55, 105, 1000)]
    assert at == pytest.approx([0.0, 6e-4, 3e-3, middle, end, end])


@given(total=st.integers(1, 500), warmup=st.integers(0, 20), share=st.floats(0.01, 1.0), step=st.integers(0, 500))
def test_wsd_is_constant_until_its_last_share_and_then_falls_in_a_line(
    total: int, warmup: int, share: float, step: int
) -> None:
    settings = msgspec.structs.replace(contract("wsd", minimum=0.0, warmup=warmup), decay_fraction=share)
    start = max(warmup, total - round(share * total))
    at = learning_rate(step, total, settings)
    if warmup <= step <= start:
        assert at == settings.learning_rate
    elif start < step <= total:
        assert at == pytest.approx(settings.learning_rate * (total - step) / (total - start), abs=1e-18)


@given(total=st.integers(1, 5000), share=st.sampled_from([0.01, 0.03, 0.1]))
def test_a_share_of_the_steps_warms_up_as_long_as_transformers_would(total: int, share: float) -> None:
    settings = Contract(learning_rate=1e-3, warmup_fraction=share)
    first = next(step for step in range(total + 1) if learning_rate(step, total, settings) >= 1e-3)
    assert first == math.ceil(total * share)  # TrainingArguments.get_warmup_steps of transformers 5.24


@given(
    step=st.integers(0, 300),
    total=st.integers(1, 200),
    warmup=st.integers(0, 250),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
)
def test_it_stays_between_minimum_and_peak_and_falls_after_the_warmup(
    step: int, total: int, warmup: int, schedule: str
) -> None:
    settings = contract(schedule, warmup=warmup)
    now, then = (learning_rate(at, total, settings) for at in (step, step + 1))
    assert 0.0 <= now <= settings.learning_rate
    if step >= warmup:
        assert now >= min(settings.learning_rate, settings.min_learning_rate) * (1 - 1e-12)
        assert then <= now + 1e-15
    else:
        assert then > now


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "minimum"), [("cosine", 3e-4), ("linear", 0.0), ("constant", 0.0)])
def test_transformers_computes_the_same(schedule: str, minimum: float) -> None:
    import torch
    from transformers import get_scheduler

    names = {"cosine": "cosine_with_min_lr", "linear": "linear", "constant": "constant_with_warmup"}
    settings = contract(schedule, minimum=minimum)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=settings.learning_rate)
    extra = {"min_lr": minimum} if schedule == "cosine" else {}
    theirs = get_scheduler(names[schedule], optimizer, settings.warmup_steps, 60, scheduler_specific_kwargs=extra)
    for step in range(61):
        assert learning_rate(step, 60, settings) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12, abs=1e-18)
        optimizer.step()
        theirs.step()


def test_steps_from_steps_tokens_or_epochs() -> None:
    batch = {"global_batch_size": 16, "sequence_length": 128}
    assert total_steps(Contract(total_steps=60, total_tokens=1e9, **batch), 1000) == 60
    assert total_steps(Contract(total_tokens=16 * 128 * 10 + 1.0, **batch), 1000) == 11
    assert total_steps(Contract(epochs=3.0, **batch), 100) == math.ceil(300 / 16) == 19
    assert total_steps(Contract(epochs=0.001, **batch), 100) == 1


def test_the_rates_that_a_recipe_shows_are_those_of_its_steps() -> None:
    found = points(contract(), 105)
    assert [(each.where, each.step) for each in found] == [
        ("first", 1),
        ("second", 2),
        ("warm-up ends", 6),
        ("half", 52),
        ("last", 105),
        ("end", 106),
    ]
    assert [each.rate for each in found] == [learning_rate(each.step - 1, 105, contract()) for each in found]
    assert [each.rate for each in found[:3]] == pytest.approx([0.0, 6e-4, 3e-3])
    assert found[-1].rate == pytest.approx(3e-4) and found[-2].rate > found[-1].rate


@given(total=st.integers(1, 30), warmup=st.integers(0, 40))
def test_no_step_is_shown_that_is_not_there(total: int, warmup: int) -> None:
    found = points(contract(warmup=warmup), total)
    assert [each.step for each in found] == sorted({each.step for each in found}) and found[0].step == 1
    assert [(each.where, each.step) for each in found[-2:]] == [("last", total), ("end", total + 1)]


@given(
    total=st.integers(10, 10**6),
    processes=st.integers(2, 4096),
    schedule=st.sampled_from(["cosine", "linear", "wsd"]),
)
def test_a_scheduler_that_steps_once_for_each_process_is_used_up_early(
    total: int, processes: int, schedule: str
) -> None:
    settings = contract(schedule, warmup=0)
    if schedule == "wsd":
        settings = msgspec.structs.replace(settings, decay_fraction=0.1)
    used = used_up_at_step(total, processes)
    assert learning_rate(processes * used, total, settings) == settings.min_learning_rate  # at its end already
    assert processes * (used - 1) < total <= processes * used
    assert ends_at_minimum(settings, total) and not ends_at_minimum(settings, total, processes)
    assert used_up_at_step(total, processes, split_batches=True) == total
