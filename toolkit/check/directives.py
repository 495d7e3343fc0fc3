"""The #SBATCH lines of a batch script: which count, which sbatch never sees."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from toolkit.check.options import read

_ALMOST = re.compile(r"#\s+SBATCH\s+-|#[Ss][Bb][Aa][Tt][Cc][Hh]\s+-")


@dataclass
class Directives:
    """Options by name with their line; lines that are ignored or are almost directives."""

    options: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)  # behind the first command: sbatch has stopped reading
    almost: list[int] = field(default_factory=list)  # "# SBATCH", "#sbatch": comments
    strange: list[tuple[int, str]] = field(default_factory=list)  # names of no option
    again: list[tuple[int, str, str, str]] = field(default_factory=list)  # line, name, value before, value now
    unreadable: list[tuple[int, str]] = field(default_factory=list)  # unbalanced quotes
    count: int = 0

    def get(self, name: str) -> str | None:
        """The value of an option, empty for a flag, None where it is not given."""
        return self.options.get(name)

    def line(self, *names: str) -> int:
        """The line of the first of the options that is given; 1 where none is."""
        return next((self.lines[name] for name in names if name in self.lines), 1)


def directives(text: str) -> Directives:
    """Read them as sbatch does: from the top to the first line that is neither empty nor a comment."""
    found = Directives()
    over = False
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip("\r")
        if line.startswith("#SBATCH") and line[7:8] in ("", " ", "\t"):
            found.count += 1
            if over:
                found.late.append(number)
                continue
            _add(found, number, line[7:])
        elif _ALMOST.match(line):
            found.almost.append(number)
        elif line.strip() and not line.lstrip().startswith("#"):
            over = True
    return found


def _add(found: Directives, number: int, rest: str) -> None:
    try:
        words = shlex.split(rest, comments=True)
    except ValueError as error:
        found.unreadable.append((number, str(error)))
        return
    options, extra, strange = read(words)
    found.strange += [(number, name) for name in strange]
    found.strange += [(number, word) for word in extra]
    for name, value in options.items():
        before = found.options.get(name)
        if before is not None and before != value:
            found.again.append((number, name, before, value))
        found.options[name] = value
        found.lines[name] = number
