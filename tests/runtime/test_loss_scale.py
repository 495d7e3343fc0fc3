"""The loss scale of fp16 and its counters over a resume, in DeepSpeed's own engines: no step is skipped for it."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests import finetune_runs
from tests.runtime.loss_scale_worker import LAST, SAVED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    command = [sys.executable, "-m", "tests.runtime.loss_scale_worker", str(tmp_path_factory.mktemp("fp16"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=finetune_runs.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_the_same_stage_goes_on_as_if_nothing_had_happened(told: Any, stage: str) -> None:
    run = told[stage]
    assert run["loaded"] == run["saved"]
    assert run["resumed"] == run["straight"] and len(run["straight"]) == LAST - SAVED
    scales = [scale for _, scale in [*run["past"], *run["straight"]]]
    assert scales[0] > min(scales) < scales[SAVED + 2]  # it has overflowed before the save, and grown after it
    assert run["saved"]["cur_hysteresis"] == 1 and 0 < run["saved"]["last_overflow_iter"] < SAVED


def test_another_stage_takes_the_scale_and_every_counter(told: Any) -> None:
    moved, run = told["2-to-3"], told["2"]
    assert moved["loaded"] == run["saved"]
    assert moved["resumed"] == [[pytest.approx(loss, rel=1e-3), scale] for loss, scale in run["straight"]]


def test_ddp_takes_the_scale_and_gives_it_back(told: Any) -> None:
    saved = told["2"]["saved"]
    clean = saved["cur_iter"] - saved["last_overflow_iter"] - 1
    assert told["2-to-ddp"] == {"scale": saved["cur_scale"], "steps": clean}
    moved = told["ddp-to-1"]
    assert moved["loaded"]["cur_scale"] == saved["cur_scale"]
    assert moved["loaded"]["cur_iter"] - moved["loaded"]["last_overflow_iter"] - 1 == clean
    assert moved["resumed"][0] == [pytest.approx(told["1"]["straight"][0][0], rel=1e-3), saved["cur_scale"]]
