"""Plans of the tiny model for local processes, and starting the fine-tuning program on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.plans import LAPTOP, TINY, plan
from toolkit import plan as plans
from toolkit.emit import deepspeed
from toolkit.plan import Plan
from toolkit.record import StepRecord
from toolkit.runtime.telemetry import read_steps

PROGRAM = "recipes.finetune.train"
SEQUENCE_LENGTH, GLOBAL_BATCH = 128, 16
MODEL = msgspec.structs.replace(
    TINY, hidden_size=128, intermediate_size=352, head_dim=32, vocab_size=260, rope_scaling_factor=0.0
)
PARAMETERS = 804_992
# 2 x 260 x 128 embeddings and head, 4 layers of 2 x 128^2 + 2 x 128 x 64 + 3 x 128 x 352 + 2 x 128, final norm
assert PARAMETERS == 2 * 260 * 128 + 4 * (2 * 128**2 + 2 * 128 * 64 + 3 * 128 * 352 + 2 * 128) + 128


def tiny_plan(
    framework: str = "deepspeed", ranks: int = 2, zero: int = 2, micro_batch: int = 4, **contract: Any
) -> Plan:
    """The recipe tiny on so many CPU ranks; ``contract`` changes its settings."""
    settings = {
        "tokenizer": "byte",
        "total_steps": 60,
        "warmup_steps": 5,
        "learning_rate": 3e-3,
        "min_learning_rate": 3e-4,
        "weight_decay": 0.1,
    } | contract
    work = {
        key: settings.pop(key) for key in ("precision", "method", "sequence_length", "optimizer") if key in settings
    }
    made = plan(
        "tiny",
        MODEL,
        msgspec.structs.replace(LAPTOP, gpus_per_node=ranks),
        framework=framework,
        zero_stage={"deepspeed": zero, "fsdp": 3}.get(framework, 0),
        micro_batch_size=micro_batch,
        gradient_accumulation_steps=GLOBAL_BATCH // (ranks * micro_batch),
        workload={"sequence_length": SEQUENCE_LENGTH} | work,
        contract=settings,
    )
    return msgspec.structs.replace(made, total_parameters=PARAMETERS)


def write(made: Plan, folder: Path) -> Path:
    """plan.json, and ds_config.json as emitted; returns the path of the plan."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plan.json"
    path.write_text(plans.dump(made))
    if made.strategy.framework == "deepspeed":
        (folder / "ds_config.json").write_text(json.dumps(deepspeed.config(made)))
    return path


def command(path: Path, ranks: int, *arguments: str) -> list[str]:
    """torchrun for several ranks, plain Python for one."""
    if ranks == 1:
        start = [sys.executable]
    else:
        start = [
            sys.executable,
            *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
            "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        ]
    return [*start, "-m", PROGRAM, "--plan", str(path), *arguments]


def environment(**more: str) -> dict[str, str]:
    """One thread per rank, nothing reported anywhere, no launcher's variables from outside."""
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("WANDB_") and name not in launcher
    }
    return inherited | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | more


def start(path: Path, ranks: int, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        command(path, ranks, *arguments), capture_output=True, text=True, timeout=300, env=environment(**more)
    )


def steps(made: Plan, folder: Path, *arguments: str) -> list[StepRecord]:
    """Run to the end, which must be a good one, and return the telemetry."""
    done = start(write(made, folder), made.strategy.dp, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return read_steps(folder / "run")
