"""Which layer, and on which rank, a value that is not finite comes from: in both programs on two real ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import finetune_runs
from tests.recipes import test_exact_resume, test_exact_resume_pretrain
from toolkit.runtime import outcome
from toolkit.runtime.divergence import DIVERGED
from toolkit.runtime.telemetry import read_events, read_steps
from toolkit.verify.parity.start import write

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]
STEP = 3


@pytest.mark.parametrize(
    ("program", "layout", "how", "where"),
    [
        (
            "finetune",
            "zero2",
            "weight",
            "the output of model.layers.1.mlp.down_proj (rank 1 on {node}),"
            " whose weight (1 of 45,056 values) is not finite on rank 1",
        ),
        ("finetune", "zero3", "output", "the output of model.layers.1.self_attn (rank 1 on {node})"),
        (
            "finetune",
            "ddp",
            "gradient",
            "run once more, its forward pass is finite in every module; first the gradient of the output of"
            " model.layers.1.self_attn.o_proj (rank 1 on {node}) is not",
        ),
        (
            "pretrain",
            "tp2",
            "weight",
            "the output of decoder.layers.1.mlp.linear_fc2 (rank 0 on {node}, 1 on {node}),"
            " whose weight (1 of 4,096 values) is not finite on rank 1",
        ),
        ("pretrain", "pp2", "output", "the output of decoder.layers.3.self_attention (rank 1 on {node})"),
    ],
)
def test_the_layer_and_the_rank(program: str, layout: str, how: str, where: str, tmp_path: Path) -> None:
    plans = test_exact_resume if program == "finetune" else test_exact_resume_pretrain
    write(plans.plan_of(tmp_path, layout), tmp_path)
    run = tmp_path / "run"
    words = ["-m", "toolkit.runtime.torchrun", str(run), "--standalone", "--nproc-per-node=2"]
    words += ["-m", "tests.recipes.ruined_layer", program, how, str(STEP), "1", "--plan", str(tmp_path / "plan.json")]
    environment = finetune_runs.environment(PYTHONPATH=str(Path.cwd()))
    done = subprocess.run(
        [sys.executable, *words, "--max-steps", "6"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == DIVERGED and "Traceback" not in done.stderr, done.stdout + done.stderr
    found = outcome.read(run)
    assert found is not None and (found.state, found.kind) == ("failed", "diverged")
    assert found.where == where.format(node=found.node)
    assert done.stderr.count(found.where) == 1
    (event,) = read_events(run)
    assert (event.kind, event.step, event.where) == ("nan", STEP, found.where)
    last = read_steps(run)[-1]
    assert last.step == STEP and (last.loss is None or last.gradient_norm is None)


def test_of_modules_and_what_lies_between_them() -> None:
    import torch
    from torch import nn

    from recipes.origin import Chunk, Watcher, agreed
    from toolkit.runtime.together import ALONE

    class Between(nn.Module):
        """Divides by zero between two layers, where it is told to."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.divisor = nn.Linear(4, 4), nn.Linear(4, 4), 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x) / self.divisor)  # type: ignore[no-any-return]

    def seen(model: nn.Module) -> str:
        watcher = Watcher([Chunk(0, model)])
        with watcher.watching():
            model(torch.ones(2, 4))
            model(torch.ones(2, 4))
        assert not any(module._forward_hooks for module in model.modules())
        return agreed(watcher.first, ALONE).replace(ALONE.hosts[0], "here")

    model = Between()
    assert seen(model) == ""
    model.divisor = 0.0
    assert seen(model) == "the input of last (rank 0 on here)"
    model.divisor = 1.0
    with torch.no_grad():
        model.first.bias[2:] = float("inf")
    assert seen(model) == "the output of first (rank 0 on here), whose bias (2 of 4 values) is not finite on rank 0"
