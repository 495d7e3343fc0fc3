"""Reads one table of a ``config.json``: every value is checked, every problem kept, every default told."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

from toolkit.errors import Problems, ToolkitError

_UNSET = object()
MOST_LAYERS = 10_000
MOST = 2**24  # nothing in a model is wider or longer; larger numbers are typing errors
MOST_PARAMETERS = 2**53
# keys that would change the shape: if the family never looks at them, the user should know
_STRUCTURAL = re.compile(r"expert|moe|lora_rank|mamba|ssm|_bias$|qk_norm|qk_layernorm")
_HARMLESS = re.compile(r"aux|router_jitter|scor|output_router|norm_topk|scale|capacity|backend|time_step|dropout|loss")


class Unsupported(ToolkitError):
    """A known family in a variant that its decoder does not describe: transformers may still count it."""


@functools.cache
def published_defaults() -> dict[str, dict[str, Any]]:
    """Defaults and key aliases of each family's configuration class (transformers 5.24), by model_type."""
    import msgspec

    text = (Path(__file__).parent / "defaults.json").read_bytes()
    return msgspec.json.decode(text)  # type: ignore[no-any-return]


class Reader:
    """One table of keys. Methods return a usable value even after recording a problem, so reading goes on.

    ``nested`` tables may leave out what they share with the family's configuration class; a top-level table
    must hold its core shape. A JSON ``null`` counts as absent.
    """

    def __init__(
        self, values: dict[str, Any], family: str, problems: Problems, where: str = "", nested: bool = False
    ) -> None:
        known = published_defaults().get(family, {})
        self.values = values
        self.family = family
        self.problems = problems
        self.where = where
        self.nested = nested
        self.defaults: dict[str, Any] = known.get("defaults", {})
        self.aliases: dict[str, str] = known.get("aliases", {})
        self.notes: list[str] = []
        self.used: set[str] = {"model_type", "architectures"}

    def sub(self, key: str, family: str) -> Reader:
        """A reader of the table under ``key`` (empty if absent); its notes must be collected by the caller."""
        value = self.raw(key)
        if value is not None and not isinstance(value, dict):
            self.problems.add(f"{self.name(key)} is {_shown(value)}, not a table of keys", "correct it in the config")
            value = None
        return Reader(value or {}, family, self.problems, f"{self.name(key)}.", nested=True)

    def name(self, key: str) -> str:
        """The key with the path in front of it."""
        return f"{self.where}{key}"

    def raw(self, *keys: str) -> Any:
        """The first value present under one of the keys or their aliases; None if there is none."""
        for key in keys:
            for name in (key, self.aliases.get(key)):
                if name is None:
                    continue
                self.used.add(name)
                if self.values.get(name) is not None:
                    return self.values[name]
        return None

    def default(self, *keys: str) -> Any:
        """The configuration class's own default, None if it has none."""
        for key in keys:
            for name in (key, self.aliases.get(key)):
                if name in self.defaults:
                    return self.defaults[name]
        return None

    def count(self, *keys: str, default: Any = _UNSET, least: int = 1, most: int = MOST, core: bool = False) -> int:
        """A whole number between ``least`` and ``most`` under one of the keys.

        Absent: ``default`` if given, else that of the configuration class with a note; a ``core`` key of a
        top-level table, and one that has no default, is a problem.
        """
        value = self.raw(*keys)
        if value is None:
            if default is not _UNSET:
                return int(default)
            known = self.default(*keys)
            if isinstance(known, int) and (self.nested or not core):
                self.assume(keys[0], known)
                return known
            self.problems.add(
                f"{self.name(keys[0])} is missing",
                f"a {self.family} model needs it" if len(keys) == 1 else f"any of {', '.join(keys)} will do",
            )
            return least
        return self.checked(value, keys[0], least, most)

    def optional(self, *keys: str, least: int = 1) -> int | None:
        """Like count, but None when neither the table nor the configuration class has it."""
        if self.raw(*keys) is None and not isinstance(self.default(*keys), int):
            return None
        return self.count(*keys, least=least)

    def checked(self, value: Any, key: str, least: int, most: int) -> int:
        """The value as a whole number; records a problem when it is none or out of range."""
        if isinstance(value, float) and value.is_integer() and abs(value) < MOST:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.problems.add(f"{self.name(key)} is {_shown(value)}, not a whole number", "correct it in the config")
            return least
        if not least <= value <= most:
            self.problems.add(f"{self.name(key)} is {_shown(value)}", f"it must be between {least} and {most}")
            return least
        return value

    def flag(self, *keys: str, default: bool | None = None, tell: bool = False) -> bool:
        """True or false; absent: ``default``, else the configuration class's, else false."""
        value = self.raw(*keys)
        if value is None:
            known = self.default(*keys) if default is None else default
            if tell and known:
                self.assume(keys[0], "true")
            return bool(known)
        if not isinstance(value, bool):
            self.problems.add(f"{self.name(keys[0])} is {_shown(value)}, not true or false", "correct it in the config")
            return False
        return value

    def number(self, *keys: str) -> float:
        """A finite number that only matters when the model is built; 0 when absent."""
        value = self.raw(*keys)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return 0.0
        return float(value)

    def ratio(self, key: str, default: float) -> float:
        """A number above 0 and up to 1,000 that a width is multiplied with."""
        value = self.raw(key)
        if value is None:
            value = self.default(key) or default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1000:
            self.problems.add(f"{self.name(key)} is {_shown(value)}", "it must be a number above 0 and up to 1000")
            return default
        return float(value)

    def text(self, *keys: str, default: str = "") -> str:
        """A text; anything else is a problem."""
        value = self.raw(*keys)
        if value is None:
            value = self.default(*keys)
        if value is None:
            return default
        if not isinstance(value, str):
            self.problems.add(f"{self.name(keys[0])} is {_shown(value)}, not a text", "correct it in the config")
            return default
        return value

    def items(self, key: str, kind: type, length: int | None = None) -> list[Any] | None:
        """A list of one kind of value, of the length if one is given; None when absent or wrong."""
        value = self.raw(key)
        if value is None:
            return None
        right = isinstance(value, list) and all(type(item) is kind for item in value)
        if not right or (length is not None and len(value) != length):
            what = "whole numbers" if kind is int else "texts"
            self.problems.add(
                f"{self.name(key)} is {_shown(value)}",
                f"it must be a list of {what}" + (f", {length} long" if length is not None else ""),
            )
            return None
        return list(value)

    def assume(self, key: str, value: Any) -> None:
        """Note that a default stands in for a missing key."""
        self.notes.append(f"{self.name(key)} is not in the config: {value} assumed, the default of {self.family}")

    def unread(self) -> list[str]:
        """Keys that look structural, hold something, and that nobody has read."""
        return sorted(
            key
            for key, value in self.values.items()
            if key not in self.used and value and _STRUCTURAL.search(key) and not _HARMLESS.search(key)
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
