"""What a distributed checkpoint of megatron-core is a checkpoint of, by the files in it or beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from recipes.pretrain.hugging_face import architecture
from toolkit import plan as plans
from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec

NAMES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


def described(source: Path) -> tuple[dict[str, Any], ModelSpec, str, Path]:
    """config.json, shape, precision, and the folder with the tokenizer's files, of a distributed checkpoint."""
    if (source / "config.json").is_file():
        config = architecture.read_config(source)
        return config, architecture.spec_of(config, str(source)), _precision(source / "megatron_core.json"), source
    path = source.parent / "plan.json"
    if not path.is_file():
        raise ToolkitError(
            f"{source} says nothing of its model: neither config.json inside nor plan.json beside it",
            remedy="copy the plan.json of the run beside the checkpoint",
        )
    plan = plans.load(path.read_bytes(), str(path))
    from recipes.model_source import hub_or_path
    from toolkit.emit.megatron_core import DTYPES

    folder = Path(hub_or_path(plan) or ".nowhere")
    known = (folder / "config.json").is_file()
    sequence = plan.contract.sequence_length
    config = architecture.read_config(folder) if known else architecture.config_of(plan.model, sequence)
    return config, plan.model, DTYPES[plan.workload.precision], folder


def _precision(path: Path) -> str:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        dtype = found["transformer"]["params_dtype"]
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ToolkitError(f"cannot read {path}: {error}", remedy="give a folder of to-megatron") from error
    if dtype not in NAMES.values():
        raise ToolkitError(f"{path} has params_dtype {dtype!r}", remedy=f"it can be {', '.join(NAMES.values())}")
    return str(dtype)
