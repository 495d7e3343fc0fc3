"""A start that is refused before it has begun: the job script hears why, as it hears of every other end.

Without a job script nothing is written: the sentence is in the terminal, and the folder of a run that this start is not
stays as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.runtime import faults, outcome
from toolkit.runtime.outcome import Presence

OUTPUT = "--output-dir"


def of_options(words: Sequence[str], error: ToolkitError) -> None:
    """The command line itself is refused; the output directory is what it says last, as in scripts."""
    folder = None
    for word, value in zip(words, [*words[1:], ""], strict=True):
        name, is_joined, text = word.partition("=")
        if name == OUTPUT:
            folder = text if is_joined else value
    if folder:
        tell(Path(folder), error)


def of_start(given: argparse.Namespace, error: ToolkitError) -> None:
    """What the options name is refused."""
    plan = getattr(given, "plan", None)
    folder = getattr(given, "output_dir", None) or (plan.parent / "run" if isinstance(plan, Path) else None)
    if folder:
        tell(Path(folder), error)


def tell(folder: Path, error: ToolkitError) -> None:
    """Into ``outcome.json`` and the words of this rank, where a job script has made room for them.

    A rank that has said something there has begun, and has told by itself how it ended.
    """
    presence = Presence(folder, outcome.rank_of_environment())
    if presence.words is not None and presence.words.parent.is_dir() and not presence.words.exists():
        presence.failed(faults.kind(error), outcome.one_line(error), error)
