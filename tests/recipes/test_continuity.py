"""A run that goes on has its states, and its loss; what has not been restored is told before a step is made."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.continuity import jump, optimizer_steps, require_rate, require_restored
from toolkit.errors import ToolkitError
from toolkit.record import StepRecord

VOCABULARY = 32_000  # ln of it: 10.4


def record(step: int, loss: float | None) -> StepRecord:
    return StepRecord(step=step, seconds=1.0, tokens=1, loss=loss, learning_rate=1e-3)


def falling(steps: int = 100) -> list[StepRecord]:
    return [record(step, 2.0 + 0.02 * math.sin(step)) for step in range(1, steps + 1)]


@given(step=st.integers(0, 10**6))
def test_states_of_the_saved_step_pass(step: int) -> None:
    require_restored(step, [step, step], step)
    require_restored(step, [], None)


def test_states_of_another_step_are_told_with_the_schedule() -> None:
    with pytest.raises(ToolkitError) as raised:
        require_restored(500, [0, 500], 0)
    said = str(raised.value)
    assert "the optimizer's states are those after 0, 500 steps, the checkpoint was saved after 500" in said
    assert "the schedule stands at step 0" in said.replace("learning rate's schedule", "schedule")


@given(rate=st.floats(1e-6, 1e-2), factor=st.sampled_from([0.5, 2.0, 8.0]))
def test_another_rate_than_the_contracts_ends_the_run(rate: float, factor: float) -> None:
    require_rate(3, rate * (1 + 1e-9), rate)
    with pytest.raises(ToolkitError, match="the schedule is stepped more or less than once"):
        require_rate(3, rate * factor, rate)


def test_a_loss_that_goes_on_is_no_news() -> None:
    assert jump(falling(), record(101, 2.1), VOCABULARY) == ""
    assert jump([], record(1, 10.4), VOCABULARY) == ""
    # steps after the checkpoint that the killed run has made are not before it
    assert jump([*falling(), record(102, 9.0)], record(101, 2.0), VOCABULARY) == ""


def test_a_loss_that_jumps_is_a_warning_and_one_as_if_untrained_the_end() -> None:
    assert "has loss 3.0000; the 20 before 1.9994 +- 0.0140" in jump(falling(), record(101, 3.0), VOCABULARY)
    with pytest.raises(ToolkitError, match=r"an untrained model 10.3735: its weights have not been restored"):
        jump(falling(), record(101, 10.2), VOCABULARY)


def test_counts_are_found_under_wrappers_and_in_groups() -> None:
    inner = SimpleNamespace(state={0: {"step": 7.0}, 1: {"step": 7}, 2: {}}, param_groups=[])
    assert optimizer_steps(SimpleNamespace(optimizer=SimpleNamespace(optimizer=inner))) == [7, 7]
    assert optimizer_steps(SimpleNamespace(state={0: {}}, param_groups=[{"step": 9}])) == [9]
    assert optimizer_steps(SimpleNamespace(state={}, param_groups=[{}])) == []
