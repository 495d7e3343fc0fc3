"""Efficiency curves: each row complete and sourced, unknown hardware never silent."""

import tomllib

import msgspec
import pytest

from tests.estimate.machines import A100, cluster
from toolkit.cluster import Link
from toolkit.registry.calibrations import load_calibration
from toolkit.registry.efficiency import DATA, assumptions, attention_curve, fabric_curve, matmul_curve

TABLES = {
    name: tomllib.loads((DATA / f"{name}.toml").read_text())
    for name in ("matmul", "attention", "first_attention", "fabric")
}
ROWS = [(name, row, values) for name, rows in TABLES.items() for row, values in rows.items()]


@pytest.mark.parametrize(("name", "row", "values"), ROWS, ids=[f"{name}-{row}" for name, row, _ in ROWS])
def test_every_row_has_a_status_and_a_source(name: str, row: str, values: dict[str, object]) -> None:
    """Fractions lie in (0, 1]; a row is fitted or assumed and says on what."""
    assert values["status"] in ("fitted", "assumed")
    assert len(str(values["source"])) > 10
    for key, value in values.items():
        if key.endswith("_fraction"):
            assert 0 < value <= 1, key


def test_the_first_generation_of_fused_attention_is_slower() -> None:
    """arXiv 2307.08691: the second doubles it on A100 at 8k tokens and heads of 128, forward and backward."""

    def rate(generation: int) -> float:
        curve = attention_curve(A100, generation)
        forward = curve.max_fraction * 8192 / (8192 + curve.half_sequence)
        return 3.5 / (1.0 / forward + 2.5 / (forward * curve.backward_ratio))

    assert 0.25 < rate(1) < 0.40  # of the peak, as the paper says of FlashAttention 1
    assert 1.4 < rate(2) / rate(1) < 2.2


def test_architectures_have_both_curves() -> None:
    """The same architectures in both tables."""
    assert set(TABLES["matmul"]) == set(TABLES["attention"])


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVLink4", "nvlink4"),
        ("NVLink5 NVL72", "nvlink4"),
        ("NVLink3", "nvlink"),
        ("NVSwitch", "nvlink"),
        ("xGMI full mesh", "xgmi"),
        ("PCIe 4 x16", "pcie"),
        ("InfiniBand HDR", "infiniband"),
        ("EFA", "efa"),
        ("RoCE", "roce"),
        ("Ethernet TCP", "tcp"),
        ("shared memory", "tcp"),
        ("fiber of unknown make", "other"),
    ],
)
def test_links_find_their_fabric(name: str, row: str) -> None:
    """By the beginning of a word, so that ``ib`` is not found in ``fiber``."""
    link = Link(name=name, bandwidth_bytes_per_second=1e9, latency_seconds=1e-6)
    assert fabric_curve(link).source == TABLES["fabric"][row]["source"]


def test_unknown_hardware_is_said_to_be_assumed() -> None:
    """An architecture or link without a row takes ``other`` and is named in the assumptions."""
    chip = msgspec.structs.replace(A100, name="novelty", architecture="novel", achievable_flop_per_second={})
    link = Link(name="string", bandwidth_bytes_per_second=1e9, latency_seconds=1e-6)
    sentences = assumptions(cluster(16, accelerator=chip, inter_node=link))
    assert any("novelty" in sentence for sentence in sentences)
    assert any("string" in sentence for sentence in sentences)
    assert assumptions(cluster(16)) == ()


def test_a_generation_falls_back_to_its_family() -> None:
    """gaudi3 takes the row gaudi."""
    chip = msgspec.structs.replace(A100, architecture="gaudi3")
    assert matmul_curve(chip).source == TABLES["matmul"]["gaudi"]["source"]
    assert attention_curve(chip).source == TABLES["attention"]["gaudi"]["source"]


def test_every_coefficient_lies_in_its_range() -> None:
    """low <= value <= high, a unit, a meaning and a source for each."""
    for name, coefficient in load_calibration("assumed").coefficients.items():
        assert coefficient.low <= coefficient.value <= coefficient.high, name
        assert coefficient.status in ("fitted", "assumed"), name
        assert coefficient.meaning and coefficient.unit and coefficient.source, name
