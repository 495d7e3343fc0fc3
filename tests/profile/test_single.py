"""A plan for several devices on one: the experiment stays."""

from __future__ import annotations

import msgspec
import pytest

from tests.finetune_runs import GLOBAL_BATCH, tiny_plan
from toolkit.errors import NoFeasiblePlan
from toolkit.estimate.evaluate import evaluate
from toolkit.profile.single import on_one_device
from toolkit.registry.calibrations import load_calibration


def test_the_experiment_stays_and_every_degree_is_one() -> None:
    plan = tiny_plan(ranks=4, micro_batch=2)
    found = on_one_device(plan, load_calibration())
    s = found.strategy
    assert found.contract == plan.contract
    assert (s.tp, s.pp, s.cp, s.ep, s.dp, s.dp_shard, found.cluster.num_gpus) == (1,) * 7
    assert s.micro_batch_size * s.gradient_accumulation_steps == GLOBAL_BATCH
    assert (s.framework, s.zero_stage) == (plan.strategy.framework, plan.strategy.zero_stage)
    again = evaluate(found.model, found.cluster, found.workload, found.strategy, load_calibration())
    assert (found.step, found.memory) == (again.step, again.memory)


def test_one_device_keeps_its_strategy() -> None:
    plan = tiny_plan(ranks=1, micro_batch=4)
    assert on_one_device(plan, load_calibration()).strategy == plan.strategy


def test_what_does_not_fit_is_refused_with_its_bytes() -> None:
    plan = tiny_plan(ranks=2)
    small = msgspec.structs.replace(plan.cluster.accelerator, memory_bytes=2**24)
    plan = msgspec.structs.replace(plan, cluster=msgspec.structs.replace(plan.cluster, accelerator=small))
    with pytest.raises(NoFeasiblePlan, match="GiB on one"):
        on_one_device(plan, load_calibration())
