"""Strict decoding of what people write: every problem at once, with the path of the key and did-you-mean."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from toolkit.errors import Problem, ToolkitError

Decoded = TypeVar("Decoded", bound=msgspec.Struct)


def decode(values: dict[str, Any], kind: type[Decoded], where: str) -> Decoded:
    """``values`` as a Struct; raises ToolkitError with all unknown, missing, mistyped and infinite keys.

    ``where`` names the file in each message.
    """
    infinite = list(_infinite(values, ""))
    try:
        if not infinite:
            return msgspec.convert(values, kind)
    except (msgspec.MsgspecError, OverflowError, RecursionError):
        pass  # the slow way below finds every problem, not only the first
    found = infinite + list(_problems(values, kind, ""))
    raise ToolkitError(*(Problem(f"{where}: {problem.message}", problem.remedy) for problem in found))


def did_you_mean(word: str, known: typing.Iterable[str]) -> str:
    """``did you mean x?`` with the nearest known words, or the list of them."""
    import difflib

    words = list(known)
    near = difflib.get_close_matches(word.casefold(), words, n=2, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(words))}"


def _infinite(value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, float) and not math.isfinite(value):
        yield Problem(f"{path} is {value}", "write a finite number")
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _infinite(inner, _join(path, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _infinite(inner, f"{path}[{index}]")


def _problems(values: Any, kind: type[msgspec.Struct], path: str) -> Iterator[Problem]:
    if not isinstance(values, dict):
        yield Problem(f"{path} must be a table", f"write [{path}] and its keys below it")
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key in values.keys() - fields.keys():
        yield Problem(f"unknown key {_join(path, key)!r}", did_you_mean(key, fields))
    for name, field in fields.items():
        if name not in values:
            if field.required:
                yield Problem(f"missing key {_join(path, name)!r}", "add it")
            continue
        nested = _struct_in(field.type)
        if nested is not None:
            yield from _problems(values[name], nested, _join(path, name))
            continue
        try:
            msgspec.convert(values[name], field.type)
        except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
            yield Problem(f"{_join(path, name)}: {str(error).replace('`', '')}", f"got {_shown(values[name])}")


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The Struct in ``Struct`` or ``Struct | None``."""
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return next((each for each in options if isinstance(each, type) and issubclass(each, msgspec.Struct)), None)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else str(key)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
