"""Numbered equations that can explain themselves.

A formula is an ordinary function whose arguments are the symbols of its equation:

    @equation("M1", "P_gpu * b_p")
    def parameters_bytes(parameters, bytes_per_parameter): ...

Inside ``with trace() as steps`` each call leaves a Step with the anchor, the equation, the values
that went in and the result: this is what ``--explain`` prints. The anchor is the number in
docs/maths.md. Outside a trace a call costs one look at a global.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

EQUATIONS: dict[str, Callable[..., Any]] = {}
_steps: list[Step] | None = None


@dataclass(frozen=True)
class Step:
    """One evaluated equation."""

    anchor: str
    name: str
    text: str
    inputs: dict[str, Any]
    result: Any
    depth: int


_depth = 0


def equation(anchor: str, text: str) -> Callable[[Function], Function]:
    """Mark a function as equation ``anchor`` of docs/maths.md, written out as ``text``."""

    def mark(function: Function) -> Function:
        if anchor in EQUATIONS:
            raise ValueError(f"equation {anchor} is defined twice")
        names = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            global _depth
            if _steps is None:
                return function(*args, **kwargs)
            position = len(_steps)
            _depth += 1
            try:
                result = function(*args, **kwargs)
            finally:
                _depth -= 1
            inputs = dict(zip(names, args, strict=False)) | kwargs
            _steps.insert(position, Step(anchor, function.__name__, text, inputs, result, _depth))
            return result

        call.anchor = anchor  # type: ignore[attr-defined]
        call.equation = text  # type: ignore[attr-defined]
        EQUATIONS[anchor] = call
        return call  # type: ignore[return-value]

    return mark


def tracing() -> bool:
    """Whether steps are being collected: a cached result must then be evaluated again."""
    return _steps is not None


@contextmanager
def trace() -> Iterator[list[Step]]:
    """Collect the steps of every equation evaluated inside the block, outer ones before inner ones."""
    global _steps
    before, _steps = _steps, []
    try:
        yield _steps
    finally:
        _steps = before
