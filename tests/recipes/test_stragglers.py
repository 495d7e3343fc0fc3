"""A rank that is really slow is named, with its host and the section; the other one, which waits for it, is not."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests import finetune_runs
from tests.recipes.test_setbacks import plan_of
from toolkit.runtime.telemetry import read_events, read_steps
from toolkit.verify.parity.start import write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]


@pytest.mark.parametrize(("program", "where", "rank"), [("finetune", "data", 1), ("pretrain", "forward", 0)])
def test_a_slow_rank_is_told(program: str, where: str, rank: int, tmp_path: Path) -> None:
    """It needs seconds more for each of four steps; what a busy machine does to the other is less."""
    folder = tmp_path / "run-of-it"
    write(plan_of(program, tmp_path), folder)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.recipes.slow_rank"]
    words += [program, str(rank), where, "0.2" if where == "data" else "0.4"]  # 8 samples, or 4 passes, a step
    words += ["--plan", str(folder / "plan.json"), "--max-steps", "4", "--save-steps", "0"]
    words += ["--straggler-every", "1", "--straggler-factor", "2"]
    environment = finetune_runs.environment(PYTHONPATH=str(Path.cwd()))
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (event,) = [each for each in read_events(folder / "run") if each.kind == "straggler"]
    assert (event.rank, event.host, event.quantity, event.step) == (rank, platform.node(), where, 3)
    assert event.value is not None and event.limit is not None and event.value > max(1.6, event.limit)
    assert f"warning: rank {rank} on {platform.node()} falls behind: {where} takes it" in done.stdout
    parts = [step.seconds_by_part for step in read_steps(folder / "run")]
    if where == "data":  # rank 0 waits for what rank 1 reads
        assert all(part is not None and part.data > 1.2 for part in parts[1:])
