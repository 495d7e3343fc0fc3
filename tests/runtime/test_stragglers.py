"""Which ranks are told to fall behind."""

import pytest

from toolkit.runtime.stragglers import Rules, Stragglers, Told


def window(*data: float, step: float = 1.0, work: tuple[int, ...] = (), section: str = "data") -> list[Told]:
    works = work or (0,) * len(data)
    return [Told(work=w, step_seconds=step, sections={section: d}) for d, w in zip(data, works, strict=True)]


def test_a_rank_is_told_once_after_three_slow_windows_in_a_row() -> None:
    known = Stragglers(Rules())
    slow, quick = window(0.1, 0.1, 0.5, 0.11), window(0.1, 0.1, 0.1, 0.11)
    told = [known.window(each) for each in (slow, slow, quick, slow, slow, slow, slow, slow)]
    assert [len(each) for each in told] == [0, 0, 0, 0, 0, 1, 0, 0]
    (found,) = told[5]
    assert (found.rank, found.section, found.seconds, found.others) == (2, "data", 0.5, 0.1)


@pytest.mark.parametrize(
    ("seconds", "step", "slow"),
    [
        ((0.1, 0.16), 1.0, True),  # of two ranks, the other one is the median
        ((0.1, 0.149), 1.0, False),  # less than 1.5 times
        ((0.001, 0.03), 1.0, False),  # thirty times, and 3% of a step
        ((0.001, 0.03), 0.5, True),
        ((0.0, 0.0, 0.2), 1.0, True),
        ((0.2, 0.2, 0.2, 0.2), 1.0, False),
    ],
)
def test_slow_is_a_factor_and_a_share_of_the_step(seconds: tuple[float, ...], step: float, slow: bool) -> None:
    found = Stragglers(Rules(windows=1)).window(window(*seconds, step=step))
    assert [each.rank for each in found] == ([len(seconds) - 1] if slow else [])


def test_stages_of_a_pipeline_are_not_compared() -> None:
    rules = Rules(windows=1)
    assert Stragglers(rules).window(window(0.1, 0.1, 0.9, 0.9, work=(0, 0, 1, 1))) == []
    assert Stragglers(rules).window(window(0.1, 0.9, work=(0, 1))) == []
    (found,) = Stragglers(rules).window(window(0.1, 0.1, 0.9, 2.0, work=(0, 0, 1, 1)))
    assert (found.rank, found.others) == (3, 0.9)


def test_products_are_compared_by_their_ratio_alone() -> None:
    (found,) = Stragglers(Rules(windows=1)).window(window(3e-4, 3e-4, 5e-4, step=10.0, section="products"))
    assert (found.rank, found.section) == (2, "products")
