"""Where a value that is not finite comes from: the first module in forward order, or the last with bad gradients.

Nothing is looked at in a step that goes well. Once a loss or the norm of gradients is not finite, the update of that
step is left out (finetune/origin.py, pretrain/origin.py), so the weights are still those that made it. Then all
ranks together run the batch's forward pass once more with a hook in every module, and tell one another what they saw.

    key = (number of the chunk in the pipeline, number of the module in the order in which forward passes end)

The least key of all ranks is the origin. Its module's own parameters are looked at, and what it was given: where it was
bad already and no module before it gave it, it was made between them, by a function of the module around.

Left out: what comes only with other random numbers (dropout), and what a kernel does differently a second time. Then
all is finite, which is told too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import torch

from toolkit.runtime.together import Group

Rename = Callable[[str], str]
OF_THE_LOSS = "the loss itself: what each module gives is finite"
MOST = 4  # ranks that are named
FINITE = "run once more, its forward pass is finite in every module"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The first bad value that a rank saw."""

    chunk: int
    number: int
    text: str
    detail: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """Its place in the forward pass."""
        return self.chunk, self.number


class Chunk(NamedTuple):
    """A part of the model on this rank; ``place`` is its number from the model's input."""

    place: int
    module: Any
    rename: Rename = str


class Watcher:
    """Hooks in every module of the chunks of a rank; ``first`` is what they have seen."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self.first: Seen | None = None
        self._numbers: dict[int, int] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, forward passes are looked at."""
        handles = []
        for place, root, rename in self.chunks:
            for name, module in root.named_modules():
                hook = self._hook(place, rename(name) or type(root).__name__, module is root)
                # before others: they may give gathered weights back (ZeRO-3)
                handles.append(module.register_forward_hook(hook, prepend=True, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, place: int, name: str, last: bool) -> Callable[..., None]:
        def look(module: Any, given: Any, named: dict[str, Any], output: Any) -> None:
            number = self._numbers[place] = self._numbers.get(place, 0) + 1
            if last:  # the next micro batch begins
                self._numbers[place] = 0
            if (self.first is not None and self.first.key <= (place, number)) or not bad(output):
                return
            inputs = bad(given) or bad(named.get("hidden_states"))
            own = [
                f"{key} ({_count(value)} of {value.numel():,} values)"
                for key, value in module.named_parameters(recurse=False)
                if bad(value)
            ]
            detail = f"{' and '.join(own)} is" if own else ""
            what = f"the input of {name}" if inputs and not own else f"the output of {name}"
            self.first = Seen(chunk=place, number=number, text=what, detail=detail)

        return look


def bad(value: Any) -> bool:
    """Whether a tensor, or one in a tuple, list, dictionary or model output, holds a value that is not finite."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() and value.numel() > 0 and not bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return any(bad(each) for each in value.values())
    if isinstance(value, tuple | list):
        return any(bad(each) for each in value)
    return False


def agreed(first: Seen | None, group: Group) -> str:
    """What the ranks saw, as words: of those that saw the earliest, which; empty where none saw anything."""
    found = [each for each in enumerate(group.share(first)) if each[1] is not None]
    if not found:
        return ""
    key = min(each.key for _, each in found)
    at = [(rank, each) for rank, each in found if each.key == key]
    ranks = ", ".join(f"{rank} on {group.hosts[rank]}" for rank, _ in at[:MOST])
    more = f" and {len(at) - MOST} more" if len(at) > MOST else ""
    detail = next((f", whose {each.detail} not finite on rank {rank}" for rank, each in at if each.detail), "")
    return f"{at[0][1].text} (rank {ranks}{more}){detail}"


def _count(value: torch.Tensor) -> str:
    return f"{int((~torch.isfinite(value)).sum()):,}"
