"""What a script does, as values: its commands, steps, assignments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.check.directives import Directives
from toolkit.check.expand import Value


@dataclass(frozen=True)
class Step:
    """One ``srun``: its options, and whether the batch shell waits for it."""

    line: int
    options: Mapping[str, str]
    background: bool
    strange: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """One command: words after expansion, its line, the shell that runs it, and the step around it."""

    name: str
    words: tuple[str, ...]
    line: int
    place: int
    step: Step | None
    pipe: tuple[str, ...] = ()  # names of the commands that its output goes through
    raw: str = ""
    prefix: Mapping[str, str] = field(default_factory=dict)  # assignments before it
    captured: bool = False  # its output is a value


@dataclass(frozen=True)
class Assignment:
    """A variable that gets a value."""

    name: str
    text: str
    raw: str
    line: int
    place: int
    step: Step | None


@dataclass
class Script:
    """What a script does."""

    name: str
    text: str
    head: Directives
    calls: list[Call] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    errors: list[int] = field(default_factory=list)  # lines that the grammar does not know
    shell: set[str] = field(default_factory=set)  # options of set: errexit, nounset, pipefail

    @property
    def is_batch(self) -> bool:
        """Whether it is for sbatch."""
        return self.head.count > 0
