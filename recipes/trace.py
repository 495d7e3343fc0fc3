"""What a run computed, step by step, for :mod:`toolkit.verify.parity`: ``--trace FOLDER`` of both training programs.

Each rank writes ``rank-R.jsonl``. Its first line says where the rank stands (``place``: its tp, pp, cp, dp and ep
ranks), which random numbers it would draw outside and inside of tensor-parallel regions, which modules normalise
over the batch, which parameters are one tensor (``tied``), and the model's ``settings``. A line per step follows, step
0 being the start:

| key | |
|---|---|
| ``samples`` | digests of every sequence that this rank read for the step, in its order: tokens.labels.positions |
| ``micro`` | sum of the token losses and number of tokens of each micro-batch, where this rank computed them |
| ``weights``, ``gradients`` | a digest of each whole tensor, under its name in the whole model |
| ``buffers`` | a digest of each buffer that a checkpoint would have |
| ``frozen``, ``moved`` | type and digest of each weight that is not trained, at the start; which have changed since |
| ``evaluating`` | whether the model computed a loss of the step in its evaluation mode |

The tensors themselves, in fp32, are in ``step-K.rank-R.npz`` (``w:NAME`` after step K; ``g:NAME``, reduced over all
ranks and not yet clipped), once for each copy that a model really has: other ranks write digests only. A trace
copies every weight and gradient to the host in every step: it is for small models and few steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Named = tuple[str, Any, bool]  # name in the whole model, the whole tensor, whether this rank writes it


class Trace:
    """One rank's file, and what it has gathered of the step that runs."""

    def __init__(self, folder: Path, rank: int, facts: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rank = folder, rank
        self._path = folder / f"rank-{rank}.jsonl"
        self._path.write_text(json.dumps(facts | {"rank": rank}) + "\n")
        self._frozen: dict[str, str] = {}
        self._clear()

    def _clear(self) -> None:
        self.samples: list[str] = []
        self.micro: list[tuple[float, int]] = []
        self.evaluating = False
        self._gradients: dict[str, str] = {}
        self._arrays: dict[str, np.ndarray] = {}

    @property
    def has_gradients(self) -> bool:
        """Whether the step that runs has told its gradients."""
        return bool(self._gradients)

    def gradients(self, tensors: Iterable[Named]) -> None:
        """The reduced gradients of the step that runs."""
        self._gradients = dict(self._kept("g", tensors))

    def step(
        self,
        number: int,
        weights: Iterable[Named],
        buffers: Iterable[tuple[str, Any]] = (),
        frozen: Iterable[tuple[str, Any]] = (),
    ) -> None:
        """The step is over; ``number`` 0 is the start of training."""
        held = {name: f"{str(tensor.dtype).removeprefix('torch.')} {_digest(tensor)}" for name, tensor in frozen}
        self._frozen = self._frozen or held
        line = {
            "step": number,
            "samples": self.samples,
            "micro": self.micro,
            "gradients": self._gradients,
            "weights": dict(self._kept("w", weights)),
            "buffers": {name: _digest(tensor) for name, tensor in buffers},
            "frozen": held if held is self._frozen else {},
            "moved": [name for name, value in held.items() if value != self._frozen.get(name)],
            "evaluating": self.evaluating,
        }
        if self._arrays:
            np.savez(self.folder / f"step-{number}.rank-{self.rank}.npz", **self._arrays)  # type: ignore[arg-type]
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._clear()

    def _kept(self, kind: str, tensors: Iterable[Named]) -> Iterator[tuple[str, str]]:
        for name, tensor, writes in tensors:
            values = _values(tensor)
            if writes:
                self._arrays[f"{kind}:{name}"] = values.copy()
            yield name, digest(values)


def _values(tensor: Any) -> np.ndarray:
    values: np.ndarray = tensor.detach().float().cpu().contiguous().numpy()
    return values


def _digest(tensor: Any) -> str:
    return digest(_values(tensor))


def digest(values: np.ndarray) -> str:
    """Sixteen hexadecimal digits that tell these values from others; 0.0 and -0.0 are one value."""
    return hashlib.sha256((values + 0).tobytes()).hexdigest()[:16]


def buffers(model: Any, saved: bool = True) -> Iterator[tuple[str, Any]]:
    """Buffers of floats: those that a checkpoint has (running statistics), or those that are made of settings."""
    for place, module in model.named_modules():
        for name, tensor in module.named_buffers(recurse=False):
            if tensor.is_floating_point() and (name not in module._non_persistent_buffers_set) == saved:
                yield f"{place}.{name}".removeprefix("."), tensor


def settings(values: Any, model: Any) -> dict[str, Any]:
    """A configuration's plain values, flat, and digests of the buffers that follow from it (rotary frequencies)."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": each for name, each in settings(value, None).items()}
        elif value is None or isinstance(value, (bool, int, float, str)):
            found[key] = value
    if model is not None:
        found |= {f"buffer {name}": _digest(tensor) for name, tensor in buffers(model, saved=False)}
    return found


def batch_norms(model: Any) -> list[str]:
    """Modules whose output for a sample depends on the other samples of its rank (SyncBatchNorm's does not)."""
    from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and not isinstance(module, SyncBatchNorm)
        and not getattr(module, "synchronised", False)
    ]


def dropouts(model: Any) -> list[str]:
    """Modules that draw random numbers in training."""
    found = []
    for name, module in model.named_modules():
        share = getattr(module, "p", 0.0) if type(module).__name__.endswith("Dropout") else 0.0
        share = max(share, *(_number(getattr(module, key, 0.0)) for key in ("attention_dropout", "dropout")))
        if share > 0.0:
            found.append(name)
    return found


def without_dropout(model: Any) -> None:
    """Nothing is dropped from here on: runs are compared, and what they would draw has been told."""
    for module in model.modules():
        if type(module).__name__.endswith("Dropout") and isinstance(getattr(module, "p", None), float):
            module.p = 0.0
        for key in ("attention_dropout", "dropout"):
            if _number(getattr(module, key, 0.0)) > 0.0:
                setattr(module, key, 0.0)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def next_draws() -> list[float]:
    """What dropout would draw next outside of any other random state; the state stays as it was."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state = torch.cuda.get_rng_state()
        drawn = torch.rand(4, device="cuda").tolist()
        torch.cuda.set_rng_state(state)
    else:
        state = torch.get_rng_state()
        drawn = torch.rand(4).tolist()
        torch.set_rng_state(state)
    return list(drawn)
