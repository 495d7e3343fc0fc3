"""The whole state of a fine-tuning run by the names of its weights, whatever framework has written it.

DDP             model.safetensors, and ``optimizer.pt`` under the numbers of the parameters
DeepSpeed, 0    mp_rank_00_model_states.pt: weights as they compute, the optimizer under the same numbers; with bf16
                the float32 master copies beside it (``FP16_UnfusedOptimizer``: one tensor for each weight)
DeepSpeed, 1-3  shards, which :mod:`toolkit.runtime.universal` puts together weight by weight
FSDP            torch's distributed checkpoints, by names already

The numbers count the parameters of the optimizer's groups in turn, and nothing of theirs tells the names: every save of
the program has ``parameters.json`` beside it, which does. What it takes is the whole state in host memory of the one
process that reads, ``12 P`` bytes; files of DDP and stage 0 are mapped, not read.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from toolkit.errors import ToolkitError
from toolkit.runtime import universal

PARAMETERS = "parameters.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
OWN = ("params", "param_names")  # of a group: which parameters it has, each framework in its own way


class Parameters(msgspec.Struct, frozen=True):
    """What ``parameters.json`` says: the names of each group of the optimizer in its order, and tied names."""

    groups: list[list[str]]
    tied: dict[str, str] = {}  # a second name of a weight: the one that is in a group

    @property
    def names(self) -> list[str]:
        """Of all groups in turn: their places are the optimizer's numbers."""
        return [name for group in self.groups for name in group]


class LossScale(NamedTuple):
    """Of fp16: the factor now, and for how many steps no gradient has overflowed."""

    factor: float
    steps: int


class States(NamedTuple):
    """``settings`` are those of each group of the optimizer, without its parameters; ``steps`` None where none count.

    ``moments`` are empty for an optimizer that keeps none (SGD). ``others`` are tensors that are saved and not trained.
    """

    parameters: Parameters
    settings: list[dict[str, Any]]
    weights: dict[str, Any]
    moments: dict[str, dict[str, Any]]
    steps: Any
    others: dict[str, Any]
    scale: LossScale | None = None


def parameters_of(checkpoint: Path) -> Parameters:
    """The names of a checkpoint's parameters; raises ToolkitError where they were not saved."""
    path = checkpoint / PARAMETERS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Parameters)
    except (OSError, msgspec.MsgspecError) as error:
        raise ToolkitError(
            f"cannot read {path}, which names the parameters that {checkpoint.name} has under numbers: {error}",
            remedy="go on with the framework and ZeRO stage that saved it; what the program saves from then on has it",
        ) from error


def read(checkpoint: Path) -> States:
    """All of it; raises ToolkitError for what is not there or is not of the shapes of the weights."""
    parameters = parameters_of(checkpoint)
    found = _read(checkpoint, parameters)
    lacking = [name for name in parameters.names if name not in found.weights]
    if lacking:
        raise ToolkitError(f"{checkpoint} lacks the weight {lacking[0]}", remedy="choose an older checkpoint")
    for name, moments in found.moments.items():
        for what, tensor in moments.items():
            if tensor.shape != found.weights[name].shape:
                raise ToolkitError(
                    f"{checkpoint}: {what} of {name} is {tuple(tensor.shape)}, the weight"
                    f" {tuple(found.weights[name].shape)}: {PARAMETERS} is not of this optimizer",
                    remedy="go on with the framework and ZeRO stage that saved it",
                )
    return found


def _read(checkpoint: Path, parameters: Parameters) -> States:
    if (checkpoint / universal.LATEST).is_file() or any(checkpoint.glob("global_step*")):
        folder = checkpoint / universal.tag_of(checkpoint)
        if any(folder.glob("*_optim_states.pt")):
            return _of_shards(checkpoint, parameters)
        return _of_stage_0(_load(folder / "mp_rank_00_model_states.pt"), parameters)
    if (checkpoint / "pytorch_model_fsdp_0").is_dir():
        return _of_fsdp(checkpoint, parameters)
    return _of_ddp(checkpoint, parameters)


def _load(path: Path) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=False, mmap=True)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="toolkit ckpt verify names damaged files") from error


def _numbered(state: dict[str, Any], parameters: Parameters) -> tuple[list[Any], dict[str, Any], Any]:
    """Settings, moments by name and steps, of the state of a torch optimizer."""
    settings = [{key: value for key, value in group.items() if key not in OWN} for group in state["param_groups"]]
    moments: dict[str, Any] = {}
    steps = None
    for number, name in enumerate(parameters.names):
        own = state["state"].get(number) or {}
        steps = own.get("step", steps)
        if all(what in own for what in MOMENTS):
            moments[name] = {what: own[what] for what in MOMENTS}
    return settings, moments, steps


def _of_ddp(checkpoint: Path, parameters: Parameters) -> States:
    from safetensors.torch import load_file

    held = {name: each for path in sorted(checkpoint.glob("*.safetensors")) for name, each in load_file(path).items()}
    weights = {name: held[key] for name in parameters.names if (key := _saved(name, held)) in held}
    settings, moments, steps = _numbered(_load(checkpoint / "optimizer.pt"), parameters)
    used = {_saved(name, held) for name in parameters.names} | set(parameters.tied)
    scale = None
    if (checkpoint / "scaler.pt").is_file():
        scaler = _load(checkpoint / "scaler.pt")
        scale = LossScale(float(scaler["scale"]), int(scaler["_growth_tracker"]))
    others = {name: each for name, each in held.items() if name not in used}
    return States(parameters, settings, weights, moments, steps, others, scale)


def _saved(name: str, held: dict[str, Any]) -> str:
    """As the model's own file has it: that of adapters leaves the adapter's name out."""
    return name if name in held else name.replace(".default.", ".")


def _of_stage_0(state: dict[str, Any], parameters: Parameters) -> States:
    held, optimizer = state["module"], state["optimizer"]
    weights = {name: held[name] for name in parameters.names if name in held}
    inner = optimizer
    if "optimizer_state_dict" in optimizer:  # bf16 and fp16: a wrapper with the master copies
        inner = optimizer["optimizer_state_dict"]
        if "fp32_groups_flat" in optimizer:
            raise ToolkitError(
                "the optimizer is DeepSpeed's fused one, whose states at stage 0 are one tensor for a whole group",
                remedy="go on at stage 0",
            )
        masters = [each for group in optimizer["fp32_groups"] for each in group]
        weights |= dict(zip(parameters.names, masters, strict=True))
    settings, moments, steps = _numbered(inner, parameters)
    used = {*parameters.names, *parameters.tied}
    others = {name: each for name, each in held.items() if name not in used}
    return States(parameters, settings, weights, moments, steps, others)


def _of_shards(checkpoint: Path, parameters: Parameters) -> States:
    """Through the universal form, in a folder beside it that goes again: the disk holds 24 bytes a parameter."""
    import torch

    _, files = universal.shards(checkpoint)
    state = _load(files[0])["optimizer_state_dict"]
    inner = state.get("optimizer_state_dict") or state["base_optimizer_state"]
    settings = [{key: value for key, value in group.items() if key not in OWN} for group in inner["param_groups"]]
    filled = iter(settings)  # groups without parameters are left out there
    settings = [next(filled) if group else {"params": []} for group in parameters.groups]
    scaler = state.get("loss_scaler")
    scale = None
    if state.get("dynamic_loss_scale"):
        scale = LossScale(float(scaler.cur_scale), max(0, int(scaler.cur_iter - scaler.last_overflow_iter - 1)))
    if not any("exp_avg" in each for each in inner["state"].values()):
        return States(parameters, settings, whole_weights(checkpoint), {}, None, {}, scale)
    with tempfile.TemporaryDirectory(dir=checkpoint.parent, prefix=".states-") as place:
        universal.convert(checkpoint, Path(place))
        zero = Path(place, Path(place, universal.LATEST_UNIVERSAL).read_text().strip(), "zero")
        weights: dict[str, Any] = {}
        moments: dict[str, Any] = {}
        for name in parameters.names:
            folder = zero / name
            got = {what: torch.load(folder / f"{what}.pt", weights_only=False) for what in ("fp32", *MOMENTS)}
            weights[name] = got["fp32"]["param"].clone()
            moments[name] = {what: got[what]["param"].clone() for what in MOMENTS}
        steps = torch.load(folder / "step.pt", weights_only=False)
    return States(parameters, settings, weights, moments, steps, {}, scale)


def whole_weights(checkpoint: Path) -> dict[str, Any]:
    """The float32 weights that are in the shards of stages 1 to 3 (DeepSpeed's own ``zero_to_fp32``)."""
    universal.shards(checkpoint)  # all are there
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        try:
            tag = universal.tag_of(checkpoint)
            return dict(get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), tag))
        except (AssertionError, KeyError, RuntimeError, ValueError, OSError, EOFError) as error:
            raise ToolkitError(
                f"DeepSpeed cannot put the weights of {checkpoint} together: {type(error).__name__}: {error}",
                remedy="toolkit ckpt verify names damaged files; choose an older checkpoint",
            ) from error


def distributed(folder: Path) -> dict[str, Any]:
    """All that a distributed checkpoint of torch holds, whole, in this one process."""
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(state, FileSystemReader(folder), planner=planner, no_dist=True)
    return state


def _of_fsdp(checkpoint: Path, parameters: Parameters) -> States:
    model = distributed(checkpoint / "pytorch_model_fsdp_0")
    held = dict(model.get("model", model))
    optimizer = distributed(checkpoint / "optimizer_0")
    optimizer = optimizer.get("optimizer", optimizer)
    weights = {name: held[key] for name in parameters.names if (key := _saved(name, held)) in held}
    settings = [{key: value for key, value in group.items() if key not in OWN} for group in optimizer["param_groups"]]
    moments: dict[str, Any] = {}
    steps = None
    for name in parameters.names:
        own = optimizer.get("state", {}).get(name) or {}
        steps = own.get("step", steps)
        if all(what in own for what in MOMENTS):
            moments[name] = {what: own[what] for what in MOMENTS}
    used = {_saved(name, held) for name in parameters.names} | set(parameters.tied)
    others = {name: each for name, each in held.items() if name not in used}
    return States(parameters, settings, weights, moments, steps, others)
