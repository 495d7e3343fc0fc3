"""What the ways of sharing keys and values send: bytes counted by hand, and which of them wait."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimate.machines import CALIBRATION, cluster, llama, timed
from toolkit.context_parallel import exchanging_ranks, heads_per_rank
from toolkit.estimate.communication import communication
from toolkit.estimates import CommunicationEstimate
from toolkit.registry.models import load_model
from toolkit.strategy import Strategy
from toolkit.workload import Workload

LENGTH = 32768
WORK = Workload(sequence_length=LENGTH)
TOKENS, LAYERS = LENGTH / 8, 32  # of one of 8 context ranks; llama() has 32 heads and 8 groups of 128


def sent(method: str, cp: int = 8, tp: int = 1, gpus: int = 16, recompute: int = 0) -> CommunicationEstimate:
    strategy = Strategy(framework="megatron", tp=tp, etp=tp, cp=cp, cp_method=method, recompute=recompute)  # type: ignore[arg-type]
    return communication(llama(), cluster(gpus), WORK, strategy, CALIBRATION)


def test_a_ring_and_a_gather_send_the_same_bytes() -> None:
    """7 blocks of keys and values of a rank's tokens, three times (forward; backward twice)."""
    keys = TOKENS * 2 * 8 * 128 * 2.0
    assert sent("p2p").cp_bytes == LAYERS * 3 * 7 * keys
    assert sent("all_gather").cp_bytes == pytest.approx(LAYERS * 3 * 7 * keys, rel=1e-12)


def test_exchanging_heads_sends_less_the_more_ranks_there_are() -> None:
    """Queries, keys, values and output, 7/8 of each, forward and backward: no factor of cp (arXiv 2309.14509, 3.2)."""
    widths = (32 + 8 + 8 + 32) * 128
    assert sent("a2a").cp_bytes == pytest.approx(LAYERS * 2 * 7 / 8 * TOKENS * widths * 2.0, rel=1e-12)
    again = sent("a2a", recompute=2).cp_bytes
    assert again == pytest.approx(1.5 * sent("a2a").cp_bytes, rel=1e-12)
    # half the tokens a rank, nearly the same part of them sent; a ring sends nearly as much as before
    halves = [sent(method, cp=4).cp_bytes / sent(method, cp=8).cp_bytes for method in ("a2a", "p2p")]
    assert halves[0] == pytest.approx(2.0 * 6 / 7, rel=1e-9) and halves[1] == pytest.approx(6 / 7, rel=1e-9)


def test_a_ring_runs_beside_attention_and_the_others_do_not() -> None:
    assert sent("p2p").cp_unhidable_seconds == 0.0
    for method in ("all_gather", "a2a"):
        found = sent(method)
        assert found.cp_unhidable_seconds == found.cp_seconds > 0.0
    both = sent("a2a+p2p", cp=16, tp=1, gpus=32)
    assert 0.0 < both.cp_unhidable_seconds < both.cp_seconds


def test_two_levels_are_an_exchange_inside_a_node_and_a_ring_outside() -> None:
    """cp 16 on nodes of 8, 8 groups of keys: 8 ranks exchange, 2 such groups pass one block round."""
    tokens = LENGTH / 16
    exchange = LAYERS * 2 * 7 / 8 * tokens * (2 * 32 + 2 * 8) * 128 * 2.0
    ring = LAYERS * 3 * 1 * tokens * 2 * 8 * 128 * 2.0
    assert sent("a2a+p2p", cp=16, gpus=32).cp_bytes == pytest.approx(exchange + ring, rel=1e-12)


def test_across_nodes_a_ring_is_slower_than_two_levels() -> None:
    """What crosses the nodes is one block of keys and values, not fifteen of them."""
    assert sent("a2a+p2p", cp=16, gpus=32).cp_seconds < sent("p2p", cp=16, gpus=32).cp_seconds


def test_seconds_of_a_step_carry_what_waits() -> None:
    strategy = Strategy(framework="megatron", cp=8, cp_method="all_gather")
    found, step = timed(llama(), cluster(8), WORK, strategy)
    assert step.exposed_cp_seconds == pytest.approx(found.cp_seconds)
    _, ring = timed(llama(), cluster(8), WORK, Strategy(framework="megatron", cp=8))
    assert ring.exposed_cp_seconds < 0.5 * step.exposed_cp_seconds


@pytest.mark.parametrize(
    ("model", "tp", "cp", "ranks"),
    [
        ("llama-2-70b", 1, 16, 8),  # 8 GPUs a node, 8 key-value heads
        ("llama-2-70b", 4, 16, 2),  # 2 of each
        ("llama-2-70b", 8, 4, 1),
        ("llama-2-7b", 2, 12, 4),  # 16 heads a rank, and 4 GPUs of a node
        ("llama-2-70b", 16, 4, 1),  # tp wider than a node
        ("deepseek-v3", 1, 64, 8),  # latent attention: 128 heads of keys
    ],
)
def test_ranks_that_exchange_heads(model: str, tp: int, cp: int, ranks: int) -> None:
    assert exchanging_ranks(load_model(model), 8, Strategy(framework="megatron", tp=tp, cp=cp)) == ranks


@settings(max_examples=50)
@given(st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(1, 96), st.sampled_from([1, 4, 8, 72]))
def test_levels_divide_what_they_cut(tp: int, cp: int, domain: int) -> None:
    model = load_model("llama-2-70b")
    ranks = exchanging_ranks(model, domain, Strategy(framework="megatron", tp=tp, cp=cp))
    assert cp % ranks == 0 and heads_per_rank(model, tp) % ranks == 0 and ranks * tp <= max(domain, tp)
    column = Strategy(framework="megatron", tp=numpy.array([tp]), cp=numpy.array([cp]))  # type: ignore[arg-type]
    assert exchanging_ranks(model, domain, column)[0] == ranks
