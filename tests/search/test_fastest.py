"""The planner's fastest plan, alone and beside the strategies of published runs."""

from collections import Counter
from pathlib import Path

import msgspec
import numpy
import pytest

from tests.requests import request_for
from tests.validate.runs import LOOKUPS
from toolkit.registry.calibrations import load_calibration
from toolkit.search.fastest import Experts, fastest
from toolkit.search.planner import search
from toolkit.strategy import Strategy
from toolkit.validate.job import Job, job_of
from toolkit.validate.rows import read

CALIBRATION = load_calibration("assumed")
RUNS = Path(__file__).parent.parent / "published" / "runs.csv"


def distinct_jobs() -> list[Job]:
    """The published runs that the planner can be asked, each question and answer once."""
    found: dict[bytes, Job] = {}
    for row in read(RUNS.read_bytes(), RUNS.name):
        job = job_of(row, LOOKUPS)
        if isinstance(job, Job):
            key = msgspec.msgpack.encode((job.model, job.cluster, job.workload, job.strategy))
            found.setdefault(key, job)
    return list(found.values())


@pytest.mark.parametrize("framework", ["any", "megatron", "deepspeed"])
def test_nothing_that_fits_is_faster(framework: str) -> None:
    request = request_for(gpus=16, framework=framework)
    best = fastest(request, CALIBRATION)
    assert best is not None
    least = min(block.seconds.min() for block in search(request, CALIBRATION).blocks)
    assert best.estimate.step.seconds == least
    assert best.verdict != "no"
    assert numpy.isfinite(least)


def test_nothing_fits() -> None:
    request = request_for(model="llama-2-70b", gpus=1, accelerator="t4", framework="fsdp")
    assert fastest(request, CALIBRATION) is None


def test_a_strategy_that_the_search_has_is_never_faster() -> None:
    request = request_for(gpus=16, accelerator="a100-80gb", global_batch=64, framework="megatron")
    published = Strategy(
        framework="megatron", tp=2, etp=2, pp=2, dp=4, dp_shard=4, zero_stage=1, micro_batch_size=1,
        gradient_accumulation_steps=16, sequence_parallel=1, recompute=2,
    )  # fmt: skip
    found = Experts(CALIBRATION).beside(request.model, request.cluster, request.workload, published)
    assert found.outside == ()
    assert found.excuse == ""
    assert found.gain is not None and found.gain >= 0.0
    assert found.gain_any is not None and found.gain_any >= found.gain
    assert "recompute" in found.differs


def test_what_the_search_cannot_have_is_said() -> None:
    request = request_for(gpus=16, global_batch=64, framework="megatron")
    published = Strategy(framework="megatron", tp=3, etp=3, dp=5, dp_shard=5, micro_batch_size=1)
    found = Experts(CALIBRATION).beside(request.model, request.cluster, request.workload, published)
    assert any("tp 3 does not divide" in sentence for sentence in found.outside)


@pytest.mark.slow
def test_the_planner_is_no_slower_than_the_experts() -> None:
    """For each published run: the planner's own best is predicted no slower, or it is said why it may be."""
    experts = Experts(CALIBRATION)
    counts: Counter[str] = Counter()
    for job in distinct_jobs():
        found = experts.beside(job.model, job.cluster, job.workload, job.strategy)
        if found.excuse:
            counts["excused"] += 1
            continue
        counts["compared"] += 1
        assert found.gain is not None, job.row.name
        assert found.gain >= -1e-12, (job.row.name, found.gain)
        assert found.gain_any is not None and found.gain_any >= -1e-12, job.row.name
    assert counts["compared"] > 500  # of 810; the others break rules, or are predicted not to fit
