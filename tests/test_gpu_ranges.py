"""Several GPU counts: ranges, lists, and what could mean two things."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.gpu_counts import parse_gpus
from toolkit.gpu_ranges import GpuRange, between, is_several, parse_range


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8..512", GpuRange((8, 512), False)),
        (" 8 .. 512 ", GpuRange((8, 512), False)),
        ("8...512", GpuRange((8, 512), False)),
        ("8\u2026512", GpuRange((8, 512), False)),
        ("1024..16384", GpuRange((1024, 16384), False)),
        ("1x8..64x8", GpuRange((8, 512), False, 8)),
        ("8..64x8", GpuRange((8, 512), False, 8)),
        ("8..512xH100", GpuRange((8, 512), False, 0, "H100")),
        ("8,16,48", GpuRange((8, 16, 48), True)),
        ("48, 8, 16, 8", GpuRange((8, 16, 48), True)),
        ("64, 128", GpuRange((64, 128), True)),
        ("64,128,256", GpuRange((64, 128, 256), True)),  # no count is that large
        ("1x8, 4x8", GpuRange((8, 32), True, 8)),
    ],
)
def test_what_people_write(text: str, found: GpuRange) -> None:
    assert is_several(text)
    assert parse_range(text) == found


@pytest.mark.parametrize("text", ["64", "8x8", "1,024", "16,384", "24,576", "100,000", "H100:8", "2x8xH100", "8-512"])
def test_one_count_is_not_several(text: str) -> None:
    assert not is_several(text)


@pytest.mark.parametrize("text", ["64,128", "8,512", "16,128", "16,800"])
def test_what_may_be_one_number_or_two_is_refused_with_both(text: str) -> None:
    with pytest.raises(ToolkitError, match="may be") as caught:
        parse_range(text)
    first, second = text.split(",")
    assert f"write {first}{second}, or {first}, {second}" in caught.value.problems[0].remedy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8..4", "run downwards"),
        ("0..8", "zero"),
        ("-8..8", "not understood"),
        ("8..1000000000", "above 1,000,000"),
        ("8..", "an end is missing"),
        ("..8", "an end is missing"),
        ("..", "an end is missing"),
        ("8..16..32", "two ends"),
        ("8..16,32", "two ends"),
        ("8,,16", "missing between commas"),
        ("8,16,", "missing between commas"),
        ("8.5..16", "not understood"),
        ("a..b", "not understood"),
        ("1x4..8x8", "mix nodes"),
        ("12..8x8", "no whole nodes of 8"),
        ("8xH100..16xA100", "several cards"),
        (", ".join(map(str, range(8, 8000, 8))), "counts"),
    ],
)
def test_what_is_no_range_is_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ToolkitError, match=words) as caught:
        parse_range(text)
    assert all(problem.remedy for problem in caught.value.problems)
    assert len(str(caught.value)) < 600


def test_a_range_is_pointed_out_where_one_count_is_wanted() -> None:
    for text in ("8..512", "8-512", "8,16,48"):
        with pytest.raises(ToolkitError) as caught:
            parse_gpus(text)
        assert "8..512" in caught.value.problems[0].remedy


def test_powers_of_two_and_whole_nodes() -> None:
    assert between(8, 512, 8) == (8, 16, 32, 64, 128, 256, 512)
    assert between(1, 16, 8) == (1, 2, 4, 8, 16)
    assert between(10, 500, 8) == (16, 32, 64, 128, 256, 496)
    assert between(24, 24, 8) == (24,)
    assert between(6, 48, 6) == (6, 12, 24, 48)  # powers of two would not be whole nodes
    assert between(64, 256, 4) == (64, 128, 256)
    assert between(12, 14, 8) == ()
    assert between(1, 32, 8, whole_nodes=True) == (8, 16, 32)
    assert len(between(1, 1_000_000, 8)) < 30


@given(st.integers(1, 5000), st.integers(0, 100_000), st.integers(1, 72))
def test_every_count_is_in_the_range_and_makes_whole_nodes(low: int, more: int, node: int) -> None:
    found = between(low, low + more, node)
    assert list(found) == sorted(set(found))
    for count in found:
        assert low <= count <= low + more
        assert count % node == 0 or count < node
    if low % node == 0 or low < node:
        assert low in found


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 16))
def test_a_count_is_written_as_it_is_read(nodes: int, more: int, size: int) -> None:
    found = parse_range(f"{nodes}x{size}..{nodes + more}x{size}xh100")
    assert parse_gpus(found.text(found.counts[0])) == (nodes * size, nodes, size, "h100")


@given(st.text(alphabet="0123456789.,x h\u2026", max_size=16))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_range(text)
    except ToolkitError as error:
        assert error.problems[0].remedy
    else:
        assert all(count > 0 for count in found.counts)
