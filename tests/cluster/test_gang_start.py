"""Four nodes start together, with torchrun and with srun itself, and compute the same losses."""

import pytest

from tests.cluster import runs, slurm
from toolkit.runtime import telemetry

pytestmark = pytest.mark.cluster
STEPS = 4


@pytest.fixture(scope="module")
def losses(four_nodes, tmp_path_factory):
    """The first steps on four nodes, by launcher."""
    found = {}
    for launcher in ("torchrun", "srun"):
        folder = tmp_path_factory.mktemp(launcher)
        runs.emit(folder, "tiny", "--framework", "ddp", nodes=4, launcher=launcher)
        run = runs.Run(four_nodes, folder, "--max-steps", str(STEPS))
        job = four_nodes.wait(run.number, timeout=300)
        said = slurm.output(job)
        assert (job["JobState"], job["NumNodes"]) == ("COMPLETED", "4"), said
        for node in ("node 0 is n1", "node 3 is n4"):
            assert node in said or four_nodes.mode == "plain", said
        assert telemetry.read_run(run.output).world_size == 4
        assert run.nothing_left() == []
        found[launcher] = [step.loss for step in telemetry.read_steps(run.output)]
    return found


def test_four_nodes_train_together(losses):
    assert len(losses["torchrun"]) == STEPS
    assert losses["torchrun"][0] > 5.3  # ln 260 = 5.56: nothing is known yet
    assert losses["torchrun"][-1] < losses["torchrun"][0]


def test_both_launchers_give_the_same_losses(losses):
    assert losses["srun"] == pytest.approx(losses["torchrun"], rel=1e-5)
