"""Sizes, rates, tokens, seconds and GPU counts: known values, refusals, round trips."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.gpu_counts import GpuRequest, parse_gpus
from toolkit.units import (
    GIB,
    format_bytes,
    format_rate,
    format_seconds,
    format_tokens,
    format_whole,
    parse_bytes,
    parse_rate,
    parse_tokens,
)

PARSERS = (parse_bytes, parse_rate, parse_tokens, parse_gpus)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80GiB", 80 * 2**30),
        ("80 GB", 80e9),
        ("80gb", 80e9),
        ("512MB", 512e6),
        ("1.5TiB", 1.5 * 2**40),
        (".5 GiB", 2**29),
        ("1,024 MiB", 2**30),
        ("40_960MiB", 40960 * 2**20),
        ("8e9 B", 8e9),
    ],
)
def test_bytes(text: str, value: float) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text", ["80", "80G", "80Gb", "80 Gbit", "0GB", "-3GB", "nan GB", "1e400GB", "", ".", "GB", "80 GB GB", "８０GB"]
)
def test_bytes_refused(text: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        parse_bytes(text)
    assert caught.value.problems[0].remedy


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("400Gb/s", 50e9),
        ("400Gbps", 50e9),
        ("400 gbps", 50e9),
        ("400Gbit/s", 50e9),
        ("400 GBit/s", 50e9),
        ("3200 Gb/s", 400e9),
        ("450GB/s", 450e9),
        ("450 GBps", 450e9),
        ("50GiB/s", 50 * GIB),
        ("3.35TB/s", 3.35e12),
    ],
)
def test_rates_tell_bits_from_bytes(text: str, value: float) -> None:
    assert parse_rate(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["450gb/s", "1mb/s", "400G", "400", "400 GB", "-1Gb/s", "0Gb/s", "400 Gb/h"])
def test_rates_refused(text: str) -> None:
    with pytest.raises(ToolkitError):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5T", 1.5e12), ("15e12", 15e12), ("300B", 300e9), ("2 T tokens", 2e12), ("70", 70), ("1,000,000", 1e6)],
)
def test_tokens(text: str, value: float) -> None:
    assert parse_tokens(text) == value


@pytest.mark.parametrize("text", ["0.5", "1.5X", "0", "-1B", "1e30", "x", "", "1.23456789012B5"])
def test_tokens_refused(text: str) -> None:
    with pytest.raises(ToolkitError):
        parse_tokens(text)


GPU_COUNTS = [
    *((text, GpuRequest(64)) for text in ("64", " 64 ", "64 GPUs", "64gpus", "64 gpu", "6_4")),
    *((text, GpuRequest(64, 8, 8)) for text in ("8x8", "8X8", "8*8", "8 x 8", "8 * 8", "8\u00d78", "8x8 GPUs")),
    *((text, GpuRequest(16, 2, 8)) for text in ("2 nodes x 8", "2 nodes x 8 gpus", "2 nodes x 8 GPUs per node")),
    ("1,024", GpuRequest(1024)),
    *((text, GpuRequest(8, accelerator="H100")) for text in ("8xH100", "8 H100", "8 x H100", "H100:8")),
    ("gpu:h100:4", GpuRequest(4, accelerator="h100")),
    ("2x8xH100", GpuRequest(16, 2, 8, "H100")),
    ("8xA100-80GB", GpuRequest(8, accelerator="A100-80GB")),
    ("64 A100 80GB", GpuRequest(64, accelerator="A100 80GB")),
]


@pytest.mark.parametrize(("text", "request_"), GPU_COUNTS, ids=[text for text, _ in GPU_COUNTS])
def test_gpu_counts(text: str, request_: GpuRequest) -> None:
    assert parse_gpus(text) == request_


def test_a_gpu_count_may_be_a_number() -> None:
    assert parse_gpus(64) == GpuRequest(64)


@pytest.mark.parametrize(
    "text",
    ["0", "-8", "8.5", "8x", "x8", "8x8x8", "8xx8", "8x0", "0x8", "eight", "1e3", "", "16k", "2 nodes", "many"]
    + ["8,8", "8;8", "8x-8", "64!", "\uff16\uff14", "9" * 5000, "2000000", "True", "nan", "8x8x", "8 8"],
)
def test_gpu_counts_refused(text: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        parse_gpus(text)
    assert caught.value.problems[0].remedy
    assert len(str(caught.value)) < 400


def test_a_card_number_is_not_taken_for_a_node_size() -> None:
    with pytest.raises(ToolkitError, match="8 nodes of 4090 GPUs") as caught:
        parse_gpus("8x4090")
    assert "--accelerator 4090" in caught.value.problems[0].remedy


@given(st.floats(min_value=1.0, max_value=1e18))
@settings(deadline=None)
def test_bytes_round_trip(value: float) -> None:
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=1e-3)


@given(st.floats(min_value=1.0, max_value=1e18))
@settings(deadline=None)
def test_rates_round_trip(value: float) -> None:
    assert parse_rate(format_rate(value)) == pytest.approx(value, rel=1e-3)


@given(st.integers(min_value=1, max_value=10**17))
@settings(deadline=None)
def test_tokens_round_trip(value: int) -> None:
    assert parse_tokens(format_tokens(value)) == pytest.approx(value, rel=1e-3)


@given(st.integers(min_value=1, max_value=1000), st.integers(min_value=1, max_value=128))
@settings(deadline=None)
def test_gpu_counts_round_trip(nodes: int, per_node: int) -> None:
    assert parse_gpus(f"{nodes}x{per_node}") == GpuRequest(nodes * per_node, nodes, per_node)
    assert parse_gpus(f"{nodes * per_node:,}") == GpuRequest(nodes * per_node)


@given(st.text(max_size=40))
@settings(deadline=None)
def test_any_text_is_read_or_refused_with_a_remedy(text: str) -> None:
    for parse in PARSERS:
        try:
            parse(text)
        except ToolkitError as error:
            assert error.problems[0].remedy


@given(st.from_regex(r"[0-9.,_]{1,12} ?[kKmMgGtTbBiI/ps x*]{0,6}", fullmatch=True))
@settings(deadline=None)
def test_number_like_text_is_positive_or_refused(text: str) -> None:
    for parse in PARSERS:
        try:
            value = parse(text)
        except ToolkitError:
            continue
        assert 0 < (value.gpus if isinstance(value, GpuRequest) else value) < math.inf


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (12.5e-6, "12.5 us"),
        (0.843, "843 ms"),
        (59.99, "59.99 s"),
        (60.27, "60.27 s"),
        (200.44, "200.4 s"),
        (599.94, "599.9 s"),
        (600, "10 min 0 s"),
        (7500, "2 h 5 min"),
        (86399, "24 h 0 min"),
        (864000, "10 days"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (83e9, "77.3 GiB"),
        (81559 * 2**20, "79.65 GiB"),
        (0, "0 B"),
        (1002 * 2**20, "0.9785 GiB"),
        (999 * 2**20, "999 MiB"),
    ],
)
def test_memory_is_shown_in_gib(value: float, text: str) -> None:
    assert format_bytes(value) == text


@given(st.floats(1, 1e18))
def test_no_unit_of_memory_is_shown_a_thousand_times(value: float) -> None:
    assert float(format_bytes(value).split()[0]) < 1000


@given(st.floats(1e-9, 599.9), st.floats(1e-9, 599.9))
def test_times_below_ten_minutes_that_differ_by_a_percent_read_differently(one: float, other: float) -> None:
    if abs(one - other) > 0.01 * max(one, other):
        assert format_seconds(one) != format_seconds(other)


@pytest.mark.parametrize(
    ("value", "text"), [(3_927_581.9, "3,930,000"), (48_141.6, "48,100"), (639.4, "639"), (90.91, "90.9"), (0.5, "0.5")]
)
def test_three_digits_without_powers_of_ten(value: float, text: str) -> None:
    assert format_whole(value) == text
