"""Text of a script after its shell has expanded it, as far as reading tells.

What a shell puts in is known where the script assigned it, and unknown otherwise: a Slurm variable, the output of a
command. The unknown is kept in the text as a mark, which says what stood there and which shell expanded it: that of
the batch script (place 0), or one that srun started on each node (place 1). So ``bash -c "... $SLURM_NODEID"`` and
``bash -c '... $SLURM_NODEID'`` differ after expansion as they do when they run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

BATCH, NODE = 0, 1  # the shell of the batch script; a shell that a step started on a node
_OPEN, _CLOSE = "\ue000", "\ue001"  # private-use characters: no script has them, and no parser minds them
MARK = re.compile(f"{_OPEN}([01]):(.*?){_CLOSE}", re.DOTALL)
_HIDDEN = {letter: 0xE100 + letter for letter in range(128) if not chr(letter).isalnum()}
_FOUND = {hidden: letter for letter, hidden in _HIDDEN.items()}
_NAME = re.compile(r"[A-Za-z_]\w*")


def plain(text: str) -> str:
    """The text of a file, without the characters that marks are made of."""
    return re.sub("[\ue000-\ue1ff]", "?", text)


def mark(place: int, what: str) -> str:
    """What a shell expands to something that cannot be known from the script.

    Its text is written in private-use characters too: the next shell that reads it must find nothing to expand there.
    """
    return f"{_OPEN}{place}:{what.translate(_HIDDEN)}{_CLOSE}"


def is_known(text: str) -> bool:
    """Whether nothing in it is unknown."""
    return _OPEN not in text


def shown(text: str) -> str:
    """As a person writes it: ``$NAME`` and ``$(command)`` where the unknown stands."""

    def one(found: re.Match[str]) -> str:
        what = found[2].translate(_FOUND)
        return what if what.startswith("$") else f"${what}"

    return MARK.sub(one, text)


def unknown(text: str) -> Iterator[tuple[int, str]]:
    """Place and text of each unknown part."""
    for found in MARK.finditer(text):
        yield int(found[1]), found[2].translate(_FOUND)


def variables(text: str, place: int | None = None) -> list[str]:
    """Names inside the unknown parts, of one place or of both."""
    return [name for where, what in unknown(text) if place in (None, where) for name in _NAME.findall(what)]


def only_variable(text: str) -> str:
    """The variable's name where the text is one unknown variable and nothing else, else empty."""
    found = MARK.fullmatch(text)
    name = found[2].translate(_FOUND) if found else ""
    return name if _NAME.fullmatch(name) else ""


def split(text: str) -> list[str]:
    """Fields at white space outside of marks, as an unquoted expansion is split."""
    return text.split()


def whole(text: str) -> int | None:
    """The number that the text is, None where it is none or unknown."""
    stripped = text.strip()
    return int(stripped) if stripped.isascii() and stripped.isdigit() else None
