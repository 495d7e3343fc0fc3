"""The state of a fine-tuning run in the files of another framework or ZeRO stage: the other way round of states.py.

    ddp        model.safetensors (adapter_model.safetensors), optimizer.pt, scaler.pt
    stage-0    one file of DeepSpeed, as stage 0 writes it, in the precision of the run
    universal  DeepSpeed's universal form, for any of the stages 1 to 3
    fsdp       torch's distributed checkpoints, as accelerate names them

Weights are the float32 master copies: a framework that computes in 16 bits rounds them itself when it loads, to the
values that it had. The rest of the checkpoint (schedule, the Trainer's state, tokenizer, random states) comes along.
"""

from __future__ import annotations

import importlib.metadata
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.runtime import states, universal
from toolkit.runtime.manifest import MANIFEST
from toolkit.runtime.states import MOMENTS, LossScale, States

DDP, STAGE_0, UNIVERSAL, FSDP = "ddp", "stage-0", "universal", "fsdp"
STATES = ("optimizer.pt", "scaler.pt", *universal.FRAMEWORK_FILES)  # of the form that is left, beside its weights
FP16_AT_STAGE_0 = "there DeepSpeed 0.19.8 divides fp16 gradients by a scale that it has not multiplied the loss by"
GROWTH_STEPS, SCALE_WINDOW = 2000, 1000  # steps without overflow until the loss scale doubles: torch's, DeepSpeed's


def form(framework: str, zero_stage: int) -> str:
    """Which of the forms a framework loads."""
    if framework == "deepspeed":
        return UNIVERSAL if zero_stage else STAGE_0
    return framework


def convert(checkpoint: Path, target: Path, wanted: str, precision: str = "fp32", step: int = 0) -> None:
    """Write ``checkpoint`` in the form ``wanted`` to the empty folder ``target``; the caller declares it whole.

    Raises ToolkitError for what cannot be read (:func:`toolkit.runtime.states.read`), and for fp16 at stage 0.
    """
    if wanted == STAGE_0 and precision == "fp16":
        raise ToolkitError(
            f"{checkpoint} cannot go on at stage 0: {FP16_AT_STAGE_0}", remedy="plan again with --zero 1 or more"
        )
    found = states.read(checkpoint)
    for path in checkpoint.iterdir():
        if path.is_file() and path.name not in STATES and not _weights(path):
            shutil.copy2(path, target / path.name)
    groups = sum(bool(group) for group in found.parameters.groups)
    _fit_schedule(target / "scheduler.pt", groups if wanted == UNIVERSAL else len(found.parameters.groups))
    write: dict[str, Callable[[], None]] = {
        DDP: lambda: _ddp(found, target),
        FSDP: lambda: _fsdp(found, target),
        STAGE_0: lambda: _stage_0(found, target, precision, step),
        UNIVERSAL: lambda: _universal(found, target, step),
    }
    write[wanted]()


def _weights(path: Path) -> bool:
    return path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json") or path.name == MANIFEST


def _fit_schedule(path: Path, groups: int) -> None:
    """DeepSpeed leaves out groups of the optimizer that hold nothing (of adapters none is a norm or a bias)."""
    import torch

    if not path.is_file():
        return
    schedule = torch.load(path, weights_only=True)
    for name in ("base_lrs", "_last_lr", "lr_lambdas"):
        if isinstance(values := schedule.get(name), list) and values:
            schedule[name] = (values + [values[-1]] * groups)[:groups]
    torch.save(schedule, path)


def _settings(found: States) -> list[dict[str, Any]]:
    """Of each group, with all that torch's own optimizer has: one of DeepSpeed's knows fewer."""
    import torch

    kind: Any = torch.optim.AdamW if found.moments else torch.optim.SGD
    defaults = {key: value for key, value in kind([torch.zeros(1)], lr=0.0).param_groups[0].items() if key != "params"}
    first = next(group for group in found.settings if "lr" in group)
    known = [defaults | first | {"weight_decay": 0.0} | group for group in found.settings]
    return [{key: value for key, value in group.items() if key in defaults or key == "initial_lr"} for group in known]


def _numbered(found: States) -> dict[str, Any]:
    """The state of a torch optimizer, under numbers."""
    number = {name: place for place, name in enumerate(found.parameters.names)}
    state = {number[name]: {"step": _steps(found)} | moments for name, moments in found.moments.items()}
    groups = [
        settings | {"params": [number[name] for name in names]}
        for settings, names in zip(_settings(found), found.parameters.groups, strict=True)
    ]
    return {"state": state, "param_groups": groups}


def _steps(found: States) -> Any:
    """A tensor of its own for each weight: one that they share would be counted up by every group."""
    import torch

    return torch.as_tensor(float(found.steps), dtype=torch.float32).clone()


def _ddp(found: States, target: Path) -> None:
    import torch
    from huggingface_hub import save_torch_state_dict
    from safetensors.torch import save_file

    if (target / "adapter_config.json").is_file():
        tensors = {name.replace(".default.", "."): each.contiguous() for name, each in found.weights.items()}
        save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
    else:
        every = found.weights | found.others
        save_torch_state_dict({name: each.clone() for name, each in every.items()}, target, metadata={"format": "pt"})
    torch.save(_numbered(found), target / "optimizer.pt")
    if found.scale is not None:
        scaler = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": GROWTH_STEPS}
        own = {"scale": found.scale.factor, "_growth_tracker": found.scale.steps}
        torch.save(scaler | own, target / "scaler.pt")


def _fsdp(found: States, target: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    adapters = (target / "adapter_config.json").is_file()
    weights = {name.replace(".default.", ".") if adapters else name: each for name, each in found.weights.items()}
    state = {name: {"step": _steps(found)} | moments for name, moments in found.moments.items()}
    groups = [
        settings | {"params": list(names)}
        for settings, names in zip(_settings(found), found.parameters.groups, strict=True)
    ]
    aliases = {name: weights[first] for name, first in found.parameters.tied.items()}
    model = weights | aliases | ({} if adapters else found.others)
    save({"model": model}, storage_writer=FileSystemWriter(target / "pytorch_model_fsdp_0"), no_dist=True)
    optimizer = {"optimizer": {"state": state, "param_groups": groups}}
    save(optimizer, storage_writer=FileSystemWriter(target / "optimizer_0"), no_dist=True)


def _facts(found: States, step: int) -> dict[str, Any]:
    """What DeepSpeed 0.19.8 keeps of a run beside weights and optimizer (``engine.py``, ``_save_checkpoint``)."""
    shapes = OrderedDict((name, each.shape) for name, each in found.weights.items())
    return {
        "module": {},
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [shapes],
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        "lr_scheduler": None,
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": 0,
        "global_steps": step,
        "global_samples": 0,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": importlib.metadata.version("deepspeed"),
        "universal_checkpoint_info": {},
    }


def _stage_0(found: States, target: Path, precision: str, step: int) -> None:
    import torch

    run = _facts(found, step)
    tag = target / f"global_step{step}"
    tag.mkdir()
    aliases = {name: found.weights[first] for name, first in found.parameters.tied.items()}
    run["module"] = found.weights | aliases | found.others
    run["optimizer"] = _numbered(found)
    if precision != "fp32":
        masters = [[found.weights[name].float() for name in names] for names in found.parameters.groups]
        wrapper = {"dynamic_loss_scale": False, "cur_scale": 1.0, "cur_iter": step, "fp32_groups": masters}
        run["optimizer"] = wrapper | {"optimizer_state_dict": run["optimizer"]}
    torch.save(run, tag / "mp_rank_00_model_states.pt")
    (target / universal.LATEST).write_text(tag.name)


def _universal(found: States, target: Path, step: int) -> None:
    import torch

    tag = target / f"global_step{step}_universal"
    zero = tag / "zero"
    for name, weight in found.weights.items():
        folder = zero / name
        folder.mkdir(parents=True)
        moments = found.moments.get(name)
        if moments is None:  # SGD keeps none, and stage 3 reads them: zeros that take no room
            moments = {what: torch.zeros(1).expand(weight.shape) for what in MOMENTS}
        for what, tensor in ({"fp32": weight.float()} | moments).items():
            torch.save({"param": tensor if what in moments else tensor.clone()}, folder / f"{what}.pt")
        if found.moments:
            torch.save(_steps(found), folder / "step.pt")
    groups = [settings for settings, names in zip(_settings(found), found.parameters.groups, strict=True) if names]
    run = _facts(found, step)
    common: dict[str, Any] = {
        "param_groups": groups,
        "optimizer_state_dict": {
            "state": {0: {"step": _steps(found) if found.moments else torch.zeros(())}},
            "param_groups": [group | {"params": []} for group in groups],
        },
        "overflow": False,
        "ds_version": run["ds_version"],
    }
    if found.scale is not None:
        common |= {"loss_scaler": _scaler(found.scale), "dynamic_loss_scale": True}
    torch.save(common, zero / "optimizer_state.pt")
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        torch.save(run, tag / name)
    (target / universal.LATEST_UNIVERSAL).write_text(tag.name)


def _scaler(scale: LossScale) -> Any:
    """DeepSpeed's own, as the program's fp16 section configures it."""
    import torch
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    made = DynamicLossScaler(
        init_scale=scale.factor,
        scale_window=SCALE_WINDOW,
        min_scale=1,
        delayed_shift=2,
        consecutive_hysteresis=False,
        raise_error_at_min_scale=True,
        dtype=torch.float16,
    )
    made.cur_iter = scale.steps
    return made
