"""Lines of a listing in a terminal: what is too long goes on under its own column, with whole words."""

from __future__ import annotations

import shutil
import sys
import textwrap

PIPE_WIDTH = 140  # characters, where no terminal says how many there are
ROOM = 40  # characters of a column of words; with less, it goes on further left


def wrapped(line: str, words: str, piped: int | None = None) -> str:
    """The line with the words at its end; in a pipe as it is, unless ``piped`` gives a width for that too."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    elif piped is not None:
        width = piped
    else:
        return (line + words).rstrip()
    longest = max((len(word) for word in words.split()), default=0)
    indent = " " * max(min(len(line), width - max(ROOM, longest)), 4)
    found = textwrap.wrap(
        line + words,
        width,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
        replace_whitespace=False,
    )
    return "\n".join(found)
