"""Tokens to experts: how often a token leaves its node, and what expert tensor parallelism changes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from toolkit.estimate.collectives import fabric
from toolkit.estimate.expert_traffic import expert_message, expert_traffic, other_domains_of_a_token
from toolkit.estimate.work import layer_work
from toolkit.registry.clusters import resolve_cluster
from toolkit.registry.models import load_model
from toolkit.strategy import Strategy
from toolkit.workload import Workload


def test_domains_of_a_token_are_those_of_a_draw() -> None:
    draw = random.Random(1)
    for domains, chosen in ((4, 8), (8, 8), (2, 1)):
        seen = [len({draw.randrange(domains) for _ in range(chosen)} - {0}) for _ in range(20_000)]
        assert other_domains_of_a_token(domains, chosen) == pytest.approx(sum(seen) / len(seen), rel=0.02)


def test_domains_of_a_token_are_equal_for_columns() -> None:
    column = other_domains_of_a_token(np.array([1, 2, 4, 8]), 6)
    assert list(column) == [other_domains_of_a_token(domains, 6) for domains in (1, 2, 4, 8)]
    assert column[0] == 0.0


def test_a_rank_sends_the_copies_of_its_own_share() -> None:
    assert expert_message(8e6, 8.0, 2) == 32e6


def _seconds(etp: int, dispatch: str = "alltoall", ep: int = 32) -> float:
    model, work = load_model("qwen3-235b-a22b"), Workload(expert_dispatch=dispatch)
    s = Strategy(framework="megatron", tp=2, ep=ep, etp=etp, pp=8, dp=16, sequence_parallel=1)
    net = fabric(resolve_cluster(256, accelerator="h100-sxm5-80gb"))
    return float(expert_traffic(net, layer_work(model, work), work, s, 12, 2.0, 4096 * 4096 * 2.0)[1])


def test_a_token_that_crosses_once_is_faster_and_both_agree_inside_a_node() -> None:
    assert _seconds(1, "deepep") < 0.6 * _seconds(1)
    assert _seconds(1, "deepep", ep=4) == pytest.approx(_seconds(1, ep=4))


def test_expert_tensor_parallelism_spreads_the_group_over_more_nodes_and_gathers() -> None:
    assert _seconds(2, ep=8) > _seconds(1, ep=8)


def test_graphs_and_overlap_only_shorten_a_step() -> None:
    from toolkit.estimate.evaluate import evaluate
    from toolkit.registry.calibrations import load_calibration

    model, cluster = load_model("qwen3-30b-a3b"), resolve_cluster(8, accelerator="h100-sxm5-80gb")
    s = Strategy(framework="megatron", ep=8, dp=8, gradient_accumulation_steps=32)

    def seconds(**changes: object) -> float:
        work = Workload(sequence_length=1024, **changes)  # type: ignore[arg-type]
        return float(evaluate(model, cluster, work, s, load_calibration("assumed")).step.seconds)

    plain, partial, full = (seconds(cuda_graphs=graphs) for graphs in ("none", "attention", "full"))
    assert full < partial < plain  # one short sequence: the host is the slower one
    assert seconds(cuda_graphs="full", expert_overlap=True) < full
