"""Whether a model's folder is the model that was planned, and whole: what the libraries let pass in silence.

transformers draws weights that a checkpoint does not have, casts integers to floats, and reads whatever shape
``config.json`` has by now. A run would train, on the wrong thing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.decode import decode_config
from toolkit.errors import Problem, Problems, ToolkitError
from toolkit.plan import Plan

# fields of a shape that decide what its weights compute; 0 or empty: not stated
COMPUTES = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "sliding_window",
    "attention_bias",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "hidden_act",
    "norm_epsilon",
    "rope_theta",
    "rope_scaling_factor",
    "max_position_embeddings",
)
MAY_BE_UNSTATED = ("hidden_act", "norm_epsilon", "rope_theta", "max_position_embeddings")
FLOATS = ("F64", "F32", "F16", "BF16")
SHOWN = 6  # tensors named in a message
MOST_HEADER = 2**27  # bytes; of a model of 100,000 tensors it has 2**24
AGAIN = "plan again with --model set to the folder that is trained"


def differences(plan: Plan, folder: Path) -> Iterator[Problem]:
    """A sentence for each setting of ``config.json`` that is not the plan's; nothing where the folder has none."""
    path = folder / "config.json"
    if not path.is_file() or plan.model.counted_layers:  # those were counted by building the model
        return
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
        found = decode_config(config, folder.name or "model", str(path))
    except (OSError, ValueError, RecursionError) as error:
        yield Problem(f"cannot read {path}: {error}", "give the folder of a saved model")
        return
    except ToolkitError as error:
        yield from error.problems
        return
    own_base = bool(plan.contract.rope_theta)
    for name in COMPUTES:
        here, planned = getattr(found, name), getattr(plan.model, name)
        unstated = name in MAY_BE_UNSTATED and not (here and planned)
        if here != planned and not unstated and not (name == "rope_theta" and own_base):
            yield Problem(f"{path} has {name} {here!r}, the plan's model {planned!r}", AGAIN)


def require_floats(folder: Path) -> None:
    """Raise ToolkitError for matrices of integers in a folder whose ``config.json`` says nothing of a quantisation."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    if config.get("quantization_config"):
        return
    odd = [
        f"{name} ({place['dtype']})"
        for path in sorted(folder.glob("*.safetensors"))
        for name, place in _header(path).items()
        if isinstance(place, dict)
        and name.endswith("weight")
        and place.get("dtype") not in FLOATS
        and len(place.get("shape", ())) > 1
    ]
    if odd:
        raise ToolkitError(
            f"{folder} holds weights that are no floats, and its config.json no quantization_config: {_some(odd)}",
            remedy="give the weights in F32, BF16 or F16",
        )


def _header(path: Path) -> dict[str, Any]:
    """What a safetensors file says of its tensors; nothing of a damaged one, which the library refuses by itself."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            found = json.loads(file.read(size)) if size <= MOST_HEADER else {}
    except (OSError, ValueError, struct.error):
        return {}
    return found if isinstance(found, dict) else {}


def require_whole(source: str, model: Any, info: dict[str, Any]) -> list[str]:
    """What to tell of a checkpoint that was loaded; ``info`` is transformers' account of it.

    Raises ToolkitError for weights that it lacks, which would be drawn at random, or has in another shape.
    """
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    with Problems() as problems:
        if missing := sorted(set(info.get("missing_keys", ())) - tied):
            problems.add(
                f"{source} lacks {len(missing)} of the model's weights, which would be random: {_some(missing)}",
                "download the folder again; with init = 'random' all of them are drawn",
            )
        shapes = [
            f"{name} {list(there)} (the model needs {list(needed)})"
            for name, there, needed in sorted(info.get("mismatched_keys", ()))
        ]
        if shapes:
            problems.add(f"{source} has weights of another shape: {_some(shapes)}", AGAIN)
    spare = sorted(info.get("unexpected_keys", ()))
    return [f"{len(spare)} tensors of {source} have no place in the model and are left out: {_some(spare)}"] * bool(
        spare
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
