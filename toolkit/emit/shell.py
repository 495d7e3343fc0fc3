"""Text of shell scripts: one way to quote a value, one to write a comment, one to refuse a #SBATCH value."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from toolkit.errors import Problems

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quote(value: str) -> str:
    """One shell word on one line that means exactly ``value``.

    ``$'...'`` for control characters, and for signs that mean something to a shell, which shellcheck would
    take for mistakes in plain single quotes.
    """
    if value.isprintable() and not set(value) & set("$`~'\\"):
        return shlex.quote(value)
    return "$'" + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _octets(c)) for c in value) + "'"


def _octets(character: str) -> str:
    return "".join(f"\\{octet:03o}" for octet in character.encode("utf-8", "surrogatepass"))


def assignment(name: str, value: str | int | Iterable[str]) -> str:
    """``name=value``, or ``name=(a b c)`` for several values."""
    if isinstance(value, (str, int)):
        return f"{name}={quote(str(value))}"
    return f"{name}=({' '.join(quote(item) for item in value)})"


def comment(text: str) -> str:
    """One comment line; what is not printable ASCII becomes ``?``."""
    return "# " + "".join(c if " " <= c <= "~" else "?" for c in text)


def path(text: str) -> str:
    """A path that no program takes for an option."""
    return f"./{text}" if text.startswith("-") else text


def label(text: str) -> str:
    """A job name: letters, digits, ``.``, ``_`` and ``-``, at most 64 of them, not starting with a dash."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text).lstrip("-.")[:64] or "train"


def body(name: str) -> str:
    """A static script of this package."""
    return (Path(__file__).parent / "bodies" / f"{name}.sh").read_text(encoding="utf-8")


def refuse_unspeakable(problems: Problems, what: str, value: str) -> bool:
    """NUL cannot be in any shell word, and a lone surrogate in no file; True when refused."""
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        problems.add(f"{what} {value!r} holds a character that no script can carry", "rename it")
        return True
    return False


def refuse_lines(problems: Problems, what: str, value: str) -> None:
    """For values that must stay on one line and must not look like an option."""
    if refuse_unspeakable(problems, what, value):
        return
    if not value.isprintable():
        problems.add(f"{what} {value!r} has line breaks or control characters", "write it on one line")
    elif value.startswith("-"):
        problems.add(f"{what} {value!r} starts with a dash and would be taken for an option", "rename it")


def refuse_directive(problems: Problems, what: str, value: str, more: str = "") -> None:
    """A ``#SBATCH`` line has no reliable quoting, so its values hold letters, digits and a few signs only."""
    signs = "._,@+:/=-" + more
    allowed = re.compile(f"[A-Za-z0-9_{re.escape(more)}][A-Za-z0-9{re.escape(signs)}]*")
    if value and not allowed.fullmatch(value):
        problems.add(
            f"{what} {value!r} cannot stand in a #SBATCH line",
            f"it may hold letters, digits and {' '.join(signs)}, and does not start with a sign",
        )
