"""DeepSpeed's own engines with fp16 on a processor: saved, loaded again, and loaded at another stage; prints JSON.

DeepSpeed refuses fp16 on processors only because its accelerator says so; torch computes it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from toolkit.runtime import rewrite, universal
from toolkit.runtime.states import PARAMETERS

SAVED, LAST = 7, 13  # steps


def engine(stage: int, universal: bool = False) -> Any:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    config: dict[str, Any] = {
        "train_batch_size": 4,
        "gradient_clipping": 1.0,
        # a scale that overflows at first, and is doubled soon
        "fp16": {"enabled": True, "initial_scale_power": 20, "loss_scale_window": 3, "hysteresis": 2},
        "zero_optimization": {"stage": stage},
    }
    if universal:
        config["checkpoint"] = {"load_universal": True}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def scale(made: Any) -> dict[str, Any]:
    """All numbers of the loss scale, whatever class keeps them."""
    holder = getattr(made.optimizer, "loss_scaler", None) or made.optimizer.loss_scale_config
    return {name: value for name, value in vars(holder).items() if isinstance(value, int | float)}


def steps(made: Any, first: int, last: int) -> list[list[float]]:
    """Loss, and scale after it, of each step."""
    found = []
    for number in range(first, last):
        batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(number)).half()
        loss = (made(batch).float() - 1).pow(2).mean() * 8
        made.backward(loss)
        made.step()
        found.append([loss.item(), float(scale(made)["cur_scale"])])
    return found


def main(folder: Path) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu"}
    CPU_Accelerator.supported_dtypes = lambda self: [torch.float, torch.bfloat16, torch.half]
    CPU_Accelerator.is_fp16_supported = lambda self: True
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    store = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    told: dict[str, Any] = {}
    for stage in (1, 2, 3):
        made, checkpoint = engine(stage), folder / f"stage-{stage}"
        past = steps(made, 0, SAVED)
        checkpoint.mkdir()
        made.save_checkpoint(str(checkpoint), tag=f"global_step{SAVED}")
        names = [name for name, _ in made.module.named_parameters()]
        (checkpoint / PARAMETERS).write_text(json.dumps({"groups": [names]}))
        saved, again = scale(made), engine(stage)
        again.load_checkpoint(str(checkpoint))
        told[f"{stage}"] = {
            "past": past,
            "saved": saved,
            "loaded": scale(again),
            "straight": steps(made, SAVED, LAST),
            "resumed": steps(again, SAVED, LAST),
        }
    for name in ("2-to-3", "2-to-ddp", "ddp-to-1"):
        (folder / name).mkdir()
    universal.convert(folder / "stage-2", folder / "2-to-3")
    rewrite.convert(folder / "stage-2", folder / "2-to-ddp", rewrite.DDP, "fp16", SAVED)
    (folder / "2-to-ddp" / PARAMETERS).write_bytes((folder / "stage-2" / PARAMETERS).read_bytes())
    rewrite.convert(folder / "2-to-ddp", folder / "ddp-to-1", rewrite.UNIVERSAL, "fp16", SAVED)
    for stage, name in ((3, "2-to-3"), (1, "ddp-to-1")):
        moved = engine(stage, universal=True)
        moved.load_checkpoint(str(folder / name))
        told[name] = {"loaded": scale(moved), "resumed": steps(moved, SAVED, LAST)}
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(torch.load(folder / "2-to-ddp" / "scaler.pt", weights_only=True))
    told["2-to-ddp"] = {"scale": scaler.get_scale(), "steps": scaler.state_dict()["_growth_tracker"]}
    torch.distributed.destroy_process_group()
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
