"""Loading a distributed checkpoint into another structure of optimizers than the one that saved it.

megatron-core 0.16.1 names every tensor of an optimizer by the weight it belongs to, in the ordinary optimizer and in
the distributed one (``fully_reshardable``), in one and in several chained ones:

    optimizer.state.exp_avg.W    optimizer.state.exp_avg_sq.W
    optimizer.state.fp32_param.W    the master copy of the ordinary one, in 16 bits; of the distributed one: .param.W

Only what is beside the tensors (groups, steps, loss scale) has the structure of the optimizers that saved it, and the
library takes that for the one to load into: KeyError 'pre_wd_mult' from the ordinary optimizer to the distributed one,
'optimizer' between one expert-parallel rank and several. Here the structure is the one that this run has built; of the
saved one only the steps and the loss scale are taken. All else of a group follows from the plan.

The ordinary optimizer in float32 saves no master weights, which are the weights themselves: the distributed one reads
those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedBase

from toolkit.errors import ToolkitError

MASTERS = ("optimizer.state.fp32_param.", "optimizer.state.param.")


def load(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """``state`` of this run, models and optimizer, with the tensors of the checkpoint in it, and its step.

    Raises ToolkitError where the checkpoint does not tell the optimizer's steps, or differing ones.
    """
    held = dist_checkpointing.load_tensors_metadata(str(path)).keys()
    leaves: list[Any] = []
    optimizer = _replaced(state["optimizer"], lambda leaf: _noted(leaf, leaves, held))
    wanted = {key: value for key, value in state.items() if key != "optimizer"}
    numbered = {str(number): leaf for number, leaf in enumerate(leaves)}
    # a second time, since one load takes each tensor of a checkpoint once
    weights = {number: leaf for number, leaf in numbered.items() if not leaf.key.startswith("optimizer.")}
    own = {number: leaf for number, leaf in numbered.items() if number not in weights}
    found = dist_checkpointing.load(wanted | {"moved": own}, str(path), strict="raise_unexpected")
    moved = found.pop("moved", {})
    if weights:
        moved |= dist_checkpointing.load({"moved": weights}, str(path), strict="raise_unexpected")["moved"]
    saved = found["optimizer"]
    loaded = _replaced(optimizer, lambda leaf: moved[str(leaf.number)])
    _set_steps(loaded, _steps(saved, path))
    scale = next(_values(saved, "grad_scaler"), None)
    if scale is not None:
        _set_all(loaded, "grad_scaler", scale)
    return found | {"optimizer": loaded}


class _Place(NamedTuple):
    """Stands in the structure for a tensor that is being loaded."""

    number: int


def _noted(leaf: Any, leaves: list[Any], held: Collection[str]) -> _Place:
    for prefix in MASTERS:
        if leaf.key.startswith(prefix):
            weight = leaf.key.removeprefix(prefix)
            leaf.key = next((key for each in MASTERS if (key := each + weight) in held), weight)
            break
    leaves.append(leaf)
    return _Place(len(leaves) - 1)


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every sharded leaf, or place of one, changed."""
    if isinstance(value, ShardedBase | _Place):
        return change(value)
    if isinstance(value, LocalNonpersistentObject):
        return value.unwrap()
    if isinstance(value, dict):
        return {key: _replaced(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(each, change) for each in value)
    return value


def _values(value: Any, name: str) -> Iterator[Any]:
    """All that stands under a name, at any depth."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == name:
                yield each
            else:
                yield from _values(each, name)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _values(each, name)


def _set_all(value: Any, name: str, new: Any) -> None:
    if isinstance(value, dict):
        if name in value:
            value[name] = new
        for key, each in value.items():
            if key != name:
                _set_all(each, name, new)
    elif isinstance(value, list | tuple):
        for each in value:
            _set_all(each, name, new)


def _steps(saved: Any, path: Path) -> int:
    counts = {int(each) for name in ("step", "common_step") for each in _values(saved, name) if each is not None}
    if len(counts) != 1:
        raise ToolkitError(
            f"{path} does not tell how many steps its optimizer has made: {sorted(counts) or 'it has no count'}",
            remedy="resume with the degrees and the optimizer that saved it",
        )
    return counts.pop()


def _set_steps(loaded: Any, steps: int) -> None:
    for groups in _values(loaded, "param_groups"):
        for group in groups:
            group["step"] = steps
