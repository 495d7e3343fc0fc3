"""YAML as an output only: nested mappings and lists of plain values, every text in double quotes.

Double-quoted YAML takes JSON's escapes and more, so a text can hold anything without changing the
document; writing it needs no YAML library. What is not here: anchors, tags, block texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dump(values: Mapping[str, Any]) -> str:
    """One document, keys in the order given."""
    return "\n".join(_lines(values, 0) or ["{}"]) + "\n"


def _lines(values: Mapping[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    for key, value in values.items():
        head = "  " * depth + f"{key}:"
        if isinstance(value, Mapping):
            lines += [head, *_lines(value, depth + 1)] if value else [head + " {}"]
        elif isinstance(value, (list, tuple)):
            lines.append(f"{head} [{', '.join(scalar(item) for item in value)}]")
        else:
            lines.append(f"{head} {scalar(value)}")
    return lines


def scalar(value: str | int | float | bool | None) -> str:
    """One value. Texts are always quoted, so that ``no`` and ``1`` stay texts."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        # YAML 1.1 takes 2e-05 for a text: its floats have a point
        return mantissa + ".0" * ("." not in mantissa and bool(exponent)) + exponent + power
    if isinstance(value, int):
        return repr(value)
    return '"' + "".join(_escape(character) for character in value) + '"'


def _escape(character: str) -> str:
    if character in '\\"':
        return "\\" + character
    if " " <= character <= "~":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
