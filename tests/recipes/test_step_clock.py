"""Seconds of a step by part: each in its own, all of them the step's."""

import time
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from recipes import reading as read_times
from recipes import step_clock
from recipes.step_clock import FORWARD_BACKWARD, OPTIMIZER, OTHER, StepClock

some = st.integers(0, 64).map(lambda n: n / 4)  # sums of quarters are exact


class Time:
    """A clock that only moves when it is told to."""

    now = 1000.0

    def perf_counter(self) -> float:
        return self.now


def slowly(clock: Time, batches: int, seconds: float) -> Iterator[int]:
    for number in range(batches):
        clock.now += seconds
        yield number


@given(st.lists(st.tuples(some, some, some, some, some, some, some, st.integers(0, 3)), min_size=1, max_size=4))
def test_each_second_is_in_one_part(steps: list) -> None:
    clock = step_clock.time = read_times.time = Time()
    try:
        timed = StepClock()
        for wait, compute, update, rest, held_out, stall, reading, batches in steps:
            timed.evaluation += held_out
            clock.now += held_out  # before the step begins
            timed.start()
            clock.now += wait
            timed.enter(FORWARD_BACKWARD)

            assert list(timed.reads(slowly(clock, batches, reading))) == list(range(batches))
            clock.now += compute
            timed.enter(OPTIMIZER)
            clock.now += update / 2
            timed.enter(OPTIMIZER)  # clipping, then the update
            clock.now += update / 2
            timed.enter(OTHER)
            clock.now += rest
            seconds, parts = timed.stop(stall)
            assert (parts.data, parts.forward_backward) == (wait + batches * reading, compute)
            assert (parts.optimizer, parts.other, parts.save, parts.evaluation) == (update, rest, stall, held_out)
            assert parts.data + parts.forward_backward + parts.optimizer + parts.other == seconds
    finally:
        step_clock.time = read_times.time = time


def test_a_step_that_told_no_parts_is_other() -> None:
    timed = StepClock()
    timed.start()
    seconds, parts = timed.stop()
    assert parts.other == seconds and parts.data == parts.forward_backward == parts.optimizer == 0.0
