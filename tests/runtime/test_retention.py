"""Which checkpoints go, and how few of those that stay are looked at."""

from hypothesis import given
from hypothesis import strategies as st

from toolkit.runtime import retention


@given(
    steps=st.lists(st.integers(0, 60), unique=True, max_size=25),
    torn=st.sets(st.integers(0, 60)),
    keep=st.integers(0, 5),
    every=st.integers(0, 7),
)
def test_the_same_go_as_if_all_were_looked_at(steps: list[int], torn: set[int], keep: int, every: int) -> None:
    found = [(f"checkpoint-{step}", step) for step in sorted(steps)]
    valid = [each for each in found if each[1] not in torn]
    seen = retention.looked_at(found, lambda name: int(name.rpartition("-")[2]) not in torn, keep, every)
    assert retention.doomed(seen, keep, every) == retention.doomed(valid, keep, every)
    assert seen[-1:] == valid[-1:] and set(seen) <= set(valid)


def test_of_ten_thousand_that_stay_for_good_two_are_looked_at() -> None:
    """One is 2,000 files on a large cluster: a look at all of them would take minutes of every save."""
    looks: list[int] = []
    found = [(step, step) for step in range(100, 1_000_100, 100)]

    def look(step: int) -> bool:
        looks.append(step)
        return True

    assert retention.doomed(retention.looked_at(found, look, 2, 100), 2, 100) == []
    assert looks == [1_000_000, 999_900]
