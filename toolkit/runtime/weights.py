"""The weights of a checkpoint as a Hugging Face folder: the float32 master copy, rounded as the run's own model is.

What it takes is the whole model in float32 in host memory, ``4 P`` bytes. Names and shapes must be those of the model
that config.json describes, and no tensor may be empty: a ZeRO-3 engine that is asked for its weights without gathering
them gives tensors of 0 elements, which save and load without a word.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from toolkit.errors import Problems, ToolkitError
from toolkit.runtime import states, universal

BESIDE = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "README.md",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.jinja",
    "*processor_config.json",
)
DTYPES = ("float32", "bfloat16", "float16")
FSDP = "pytorch_model_fsdp_0"  # the folder that accelerate 1.15 writes sharded weights to
LARGEST_FILE_BYTES = 5_000_000_000


def kind_of(checkpoint: Path) -> str:
    """What it is: deepspeed | universal | megatron | fsdp | adapters | hugging-face, or "" for none of them."""
    if (checkpoint / universal.LATEST_UNIVERSAL).is_file():
        return "universal"
    if any(checkpoint.glob("global_step*")):
        return "deepspeed"
    if (checkpoint / ".metadata").is_file():
        return "megatron"
    if (checkpoint / FSDP).is_dir():
        return "fsdp"
    if (checkpoint / "adapter_config.json").is_file():
        return "adapters"
    if (checkpoint / "config.json").is_file() and any(checkpoint.glob("*.safetensors")):
        return "hugging-face"
    return ""


def hugging_face(checkpoint: Path, target: Path, dtype: str = "") -> dict[str, Any]:
    """Write the folder that ``from_pretrained`` (of adapters: peft) reads; returns what it holds.

    ``target`` is an empty folder. ``dtype`` empty: that of the weights which the run itself has written, or would.
    Raises ToolkitError for what has no weights of its own, and for names, shapes or values that are not the model's.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    weights = _weights(checkpoint)
    adapters = (checkpoint / "adapter_config.json").is_file()
    chosen = dtype or _own_dtype(checkpoint)
    _require_whole(checkpoint, weights)
    if adapters:
        weights = {_adapter_name(name): tensor for name, tensor in weights.items() if ".lora_" in name}
    else:
        tied = _require_model(checkpoint, weights)
        weights = {name: tensor for name, tensor in weights.items() if name not in tied}
    rounded: dict[int, Any] = {}  # tied weights are one tensor, and stay one
    for tensor in weights.values():
        if id(tensor) not in rounded:  # a copy: those of DeepSpeed are views of one long tensor
            rounded[id(tensor)] = tensor.to(_torch_dtype(chosen), copy=True).contiguous()
    _save({name: rounded[id(tensor)] for name, tensor in weights.items()}, target, adapters)
    for pattern in BESIDE:
        for path in checkpoint.glob(pattern):
            shutil.copy2(path, target / path.name)
    if not adapters:
        config = json.loads((target / "config.json").read_text()) | {"dtype": chosen}
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return {
        "tensors": len(weights),
        "parameters": sum({id(tensor): tensor.numel() for tensor in weights.values()}.values()),
        "dtype": chosen,
        "adapters": adapters,
    }


def _weights(checkpoint: Path) -> dict[str, Any]:
    """Every weight by its name, in float32 where the run keeps it so."""
    kind = kind_of(checkpoint)
    if kind == "universal":
        return _of_universal(checkpoint)
    if kind == "deepspeed":
        return _of_deepspeed(checkpoint)
    if kind == "fsdp":
        return _of_fsdp(checkpoint / FSDP)
    if kind in ("hugging-face", "adapters"):
        from safetensors.torch import load_file

        return {
            name: each for path in sorted(checkpoint.glob("*.safetensors")) for name, each in load_file(path).items()
        }
    raise ToolkitError(
        f"{checkpoint} holds no weights that can be written as a Hugging Face folder",
        remedy="give a checkpoint-N of a run",
    )


def _of_universal(checkpoint: Path) -> dict[str, Any]:
    import torch

    folder = checkpoint / (checkpoint / universal.LATEST_UNIVERSAL).read_text().strip() / "zero"
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    return {name: torch.load(folder / name / "fp32.pt", weights_only=False)["param"] for name in names}


def _of_deepspeed(checkpoint: Path) -> dict[str, Any]:
    """Stages 1 to 3 from the master copies in the shards; stage 0 from its own, where their names were saved."""
    import torch

    tag = universal.tag_of(checkpoint)
    if any((checkpoint / tag).glob("*_optim_states.pt")):
        return states.whole_weights(checkpoint)
    if (checkpoint / states.PARAMETERS).is_file():
        found = states.read(checkpoint)
        return found.others | found.weights
    state = torch.load(checkpoint / tag / "mp_rank_00_model_states.pt", map_location="cpu", weights_only=False)
    return dict(state["module"])


def _of_fsdp(folder: Path) -> dict[str, Any]:
    state = states.distributed(folder)
    return dict(state.get("model", state))


def _require_whole(checkpoint: Path, weights: dict[str, Any]) -> None:
    empty = [name for name, tensor in weights.items() if not tensor.numel()]
    if empty or not weights:
        raise ToolkitError(
            f"{checkpoint}: {len(empty)} of {len(weights)} tensors have no elements ({', '.join(empty[:3])})",
            remedy="they were saved without being gathered from the ranks: convert the ZeRO-3 checkpoint itself",
        )


def _require_model(checkpoint: Path, weights: dict[str, Any]) -> set[str]:
    """Exactly the names and shapes of config.json's model: a loader that is not strict draws what is missing.

    Returns the names under which a tied weight comes a second time, which no file holds.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(checkpoint)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied: set[str] = (
        set(getattr(model, "_tied_weights_keys", None) or ())
        if getattr(config, "tie_word_embeddings", False)
        else set()
    )
    with Problems() as problems:
        for name in sorted(wanted.keys() - weights.keys() - tied):
            problems.add(f"{checkpoint} lacks {name}", "it would be drawn at random by whoever loads it")
        for name in sorted(weights.keys() - wanted.keys()):
            problems.add(f"{checkpoint} holds {name}, which the model of its config.json does not have")
        for name in sorted(weights.keys() & wanted.keys()):
            if tuple(weights[name].shape) != wanted[name]:
                problems.add(f"{name} is {tuple(weights[name].shape)}, the model of config.json has {wanted[name]}")
    return tied


def _adapter_name(name: str) -> str:
    """As peft saves it: without the name of the adapter."""
    return name.replace(".default.", ".")


def _own_dtype(checkpoint: Path) -> str:
    """Of the weights that the Trainer wrote beside the states, or of config.json."""
    for path in sorted(checkpoint.glob("*.safetensors")):
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                return str(file.get_tensor(name).dtype).removeprefix("torch.")
    path = checkpoint / "config.json"
    values = json.loads(path.read_text()) if path.is_file() else {}
    return values.get("dtype") or values.get("torch_dtype") or "float32"


def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


def _save(weights: dict[str, Any], target: Path, adapters: bool) -> None:
    if adapters:
        from safetensors.torch import save_file

        tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
        return
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(weights, target, max_shard_size=LARGEST_FILE_BYTES, metadata={"format": "pt"})
