"""The Pareto front against its definition, on random points and on a real search."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requests import request_for
from toolkit.registry.calibrations import load_calibration
from toolkit.report.sweep import representatives, thinned
from toolkit.search.pareto import Point, front, merged, nondominated
from toolkit.search.planner import search
from toolkit.strategy import Strategy

CALIBRATION = load_calibration("assumed")
VALUES = st.integers(1, 12).map(float)


def dominates(left: tuple[float, ...], right: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(left, right, strict=True)) and left != right


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=40))
def test_two_columns(points: list[tuple[float, float]]) -> None:
    seconds, total_bytes = (numpy.array(column) for column in zip(*points, strict=True))
    kept = [points[index] for index in nondominated(seconds, total_bytes)]
    expected = {p for p in points if not any(dominates(q, p) for q in points)}
    assert set(kept) == expected and len(kept) == len(expected)
    assert kept == sorted(kept)


def points_of(rows: list[tuple[float, float]], gpus: int) -> list[Point]:
    if not rows:
        return []
    seconds, total_bytes = (numpy.array(column) for column in zip(*rows, strict=True))
    request = request_for()
    return [
        Point(request, Strategy(), gpus, float(seconds[i]), float(total_bytes[i]), "fits")
        for i in nondominated(seconds, total_bytes)
    ]


@given(st.lists(st.lists(st.tuples(VALUES, VALUES), max_size=15), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_three_columns(counts: list[list[tuple[float, float]]]) -> None:
    every = [(8 * 2**i, *row) for i, rows in enumerate(counts) for row in rows]
    found = merged([points_of(rows, 8 * 2**i) for i, rows in enumerate(counts)][::-1])
    kept = {(p.gpus, p.seconds, p.total_bytes) for p in found}
    assert kept == {p for p in every if not any(dominates(q, p) for q in every)}
    shown, epsilon = thinned(found, 3)
    assert len(shown) <= max(3, 0)
    for p in found:  # each one that is left out has a neighbour with no more GPUs
        assert any(
            q.gpus <= p.gpus
            and q.seconds <= p.seconds * (1 + epsilon) + 1e-12
            and q.total_bytes <= p.total_bytes * (1 + epsilon) + 1e-12
            for q in shown
        )
    assert all(any(q is p for p in found) for q in representatives(found))


@pytest.fixture(scope="module")
def searched():
    request = request_for(gpus=32)
    result = search(request, CALIBRATION, top=5)
    return request, result, front(request, result)


def test_no_candidate_of_a_search_beats_a_point_of_its_front(searched) -> None:
    _, result, found = searched
    seconds = numpy.concatenate([block.seconds for block in result.blocks])
    total_bytes = numpy.concatenate([block.total_bytes for block in result.blocks])
    assert len(found) > 5
    for point in found:
        better = (seconds <= point.seconds) & (total_bytes <= point.total_bytes)
        better &= (seconds < point.seconds) | (total_bytes < point.total_bytes)
        assert not better.any()
    assert found[0].seconds == seconds.min()
    assert found[-1].total_bytes == total_bytes[numpy.isfinite(seconds)].min()


def test_every_point_fits_and_evaluates_the_same_alone(searched) -> None:
    from toolkit.search.planner import choose

    request, _, found = searched
    for point in (found[0], found[len(found) // 2], found[-1]):
        alone = choose(request, CALIBRATION, point.strategy)
        assert alone.verdict == point.verdict != "no"
        assert alone.estimate.step.seconds == pytest.approx(point.seconds, rel=1e-12)
        assert alone.estimate.memory.total_bytes == pytest.approx(point.total_bytes, rel=1e-12)


def test_nothing_fits_no_front() -> None:
    request = request_for(model="llama-3.1-405b", gpus=8)
    assert front(request, search(request, CALIBRATION, top=1)) == []
