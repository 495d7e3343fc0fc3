"""DeepSpeed's universal form of a ZeRO checkpoint, which any number of ranks and any of the stages 1 to 3 can load.

DeepSpeed 0.19.8 writes it with ``deepspeed.checkpoint.ds_to_universal``: a folder for each weight with its fp32 value
and its two moments. What it writes from stages 1 and 2 only these load again, and the same of stage 3: the engine looks
for the facts of a run under names of its own stage, and for the optimizer's step in another place. :func:`convert` adds
what the other stages look for. The rest of the checkpoint (scheduler, random states, the Trainer's state) comes along.

Nothing is loaded whole: the memory it takes is one rank's shard, ``12 P / ranks`` bytes, and one weight at a time; the
disk holds ``24 P`` bytes while it works and ``12 P`` after.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import shutil
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.runtime.manifest import MANIFEST

LATEST, LATEST_UNIVERSAL = "latest", "latest_universal"
# what belongs to the form that is left; all else of the checkpoint is the run's and comes along
FRAMEWORK_FILES = (LATEST, "zero_to_fp32.py", "zero_to_torch.py", MANIFEST)


def tag_of(checkpoint: Path) -> str:
    """The folder that the file ``latest`` names, or the only one where that file is lost.

    Raises ToolkitError where there is no such folder, or several and no ``latest``.
    """
    folders = sorted(path.name for path in checkpoint.glob("global_step*") if path.is_dir())
    named = checkpoint / LATEST
    if named.is_file() and (tag := named.read_text().strip()):
        if tag not in folders:
            raise ToolkitError(
                f"{named} names {tag}, and there is no such folder in {checkpoint}",
                remedy=f"there are: {', '.join(folders) or 'none'}; choose another checkpoint",
            )
        return tag
    if len(folders) != 1:
        raise ToolkitError(
            f"{checkpoint} is no checkpoint of DeepSpeed: it holds no file named {LATEST}, and"
            f" {len(folders)} folders named global_step*",
            remedy="give the checkpoint-N of a run",
        )
    return folders[0]


def shards(checkpoint: Path) -> tuple[int, list[Path]]:
    """Number of data-parallel ranks, and the files with their optimizer states; raises ToolkitError if one is missing.

    The number is the one in the shard names; a file that is missing in the middle, or has no bytes, is named.
    """
    folder = checkpoint / tag_of(checkpoint)
    found = sorted(folder.glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt"))
    numbers = {int(path.name.split("zero_pp_rank_")[1].split("_")[0]): path for path in found}
    if not numbers:
        raise ToolkitError(
            f"{folder} holds no shards of an optimizer (zero_pp_rank_R_mp_rank_00_optim_states.pt)",
            remedy="only ZeRO stages 1 to 3 have the universal form; stage 0 loads on any number of ranks as it is",
        )
    missing = sorted(set(range(max(numbers) + 1)) - set(numbers))
    empty = [path.name for path in found if path.stat().st_size == 0]
    if missing or empty:
        what = [f"the shards of ranks {', '.join(map(str, missing))}"] if missing else []
        what += [f"the bytes of {', '.join(empty)}"] if empty else []
        raise ToolkitError(f"{folder} lacks {' and '.join(what)}", remedy="choose an older checkpoint")
    return len(numbers), [numbers[rank] for rank in sorted(numbers)]


def mark(checkpoint: Path) -> str:
    """Tells this checkpoint from one of the same name that is written later."""
    return hashlib.sha256((checkpoint / MANIFEST).read_bytes()).hexdigest()


def convert(checkpoint: Path, target: Path, workers: int = 1) -> dict[str, Any]:
    """Write the universal form of ``checkpoint`` to the empty folder ``target``; returns ranks and stage it came from.

    The caller declares it whole. Raises ToolkitError for what is no such checkpoint, and for one that DeepSpeed
    cannot convert.
    """
    ranks, files = shards(checkpoint)
    tag = tag_of(checkpoint)
    folder = target / f"{tag}_universal"
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        from deepspeed.checkpoint import ds_to_universal

        options = argparse.Namespace(
            input_folder=str(checkpoint / tag),
            output_folder=str(folder),
            num_extract_workers=workers,
            num_merge_workers=workers,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,  # stages 1 and 2 do not save it, and need none of it without tensor parallelism
        )
        try:
            ds_to_universal.main(options)
        except (AssertionError, KeyError, RuntimeError, ValueError, OSError, EOFError, NotImplementedError) as error:
            raise ToolkitError(
                f"DeepSpeed cannot convert {checkpoint}: {type(error).__name__}: {error}",
                remedy="toolkit ckpt verify names damaged files; choose an older checkpoint",
            ) from error
    stage = _complete(folder, files[0])
    for path in checkpoint.iterdir():
        if path.is_file() and path.name not in FRAMEWORK_FILES:
            shutil.copy2(path, target / path.name)
    return {"ranks": ranks, "zero_stage": stage}


def _complete(folder: Path, first_shard: Path) -> int:
    """Add to the universal form of one stage what the loaders of the others look for; returns the stage.

    Stages 1 and 2 (``base_optimizer.py``) read ``param_groups`` from ``optimizer_state.pt`` and each weight's
    ``step.pt``, and take each tensor, in its shape, out of a dictionary; stage 3 (``stage3.py``) reads step and groups
    from ``optimizer_state_dict`` inside of the same file, and writes flat tensors.
    The run's facts are in ``mp_rank_00_model_states.pt`` below stage 3, in ``zero_pp_rank_0_...`` at stage 3.
    """
    import torch

    def load(path: Path) -> Any:
        return torch.load(path, map_location="cpu", weights_only=False)

    path = folder / "zero" / "optimizer_state.pt"
    common, shard = load(path), load(first_shard)["optimizer_state_dict"]
    stage = int(shard.get("zero_stage", 1))  # BF16_Optimizer, of stage 1 with sums in float32, does not tell
    inner = shard["optimizer_state_dict"] if stage == 3 else shard["base_optimizer_state"]
    step = inner["state"][0]["step"]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in inner["param_groups"]]
    for name in ("fp32_flat_groups", "ds_zero_partition_groups", "single_partition_of_fp32_groups"):
        common.pop(name, None)  # of one rank: the weights have folders of their own
    common["param_groups"] = groups
    common["optimizer_state_dict"] = {
        "state": {0: {"step": step}},
        "param_groups": [g | {"params": []} for g in groups],
    }
    names = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
    source = next(folder / name for name in names if (folder / name).exists())
    run = load(source)
    shapes = {name: shape for group in run["param_shapes"] for name, shape in group.items()}
    for weight in (folder / "zero").iterdir():
        for name in ("fp32", "exp_avg", "exp_avg_sq") if stage == 3 and weight.is_dir() else ():
            torch.save({"param": load(weight / f"{name}.pt").view(shapes[weight.name])}, weight / f"{name}.pt")
        if weight.is_dir() and not (weight / "step.pt").exists() and (weight / "exp_avg.pt").exists():
            torch.save(step, weight / "step.pt")
    common.setdefault("ds_version", run["ds_version"])  # stages 1 and 2 insist on it, stage 3 does not save it there
    torch.save(common, path)
    run["module"] = {}  # the weights are in their folders, in fp32
    for stale in folder.glob("*_model_states.pt"):
        stale.unlink()
    for name in names:
        torch.save(run, folder / name)
    return stage
