"""Errors that a user can act on: each problem tells the offending values and the remedy.

ToolkitError
├── NoFeasiblePlan   nothing fits: exit code 1
└── (anything else)  bad input: exit code 2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong (with the values that make it so) and what to do about it."""

    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class ToolkitError(Exception):
    """Bad input. Holds every problem found, not only the first."""

    exit_code = 2

    def __init__(self, *problems: Problem | str, remedy: str = "") -> None:
        self.problems: tuple[Problem, ...] = tuple(
            Problem(problem, remedy) if isinstance(problem, str) else problem for problem in problems
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NoFeasiblePlan(ToolkitError):
    """The request is sound, but no candidate satisfies every constraint."""

    exit_code = 1


def reason(error: Exception) -> str:
    """What an exception says, without the path where it is the file system's: the message has the path already."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


class Problems:
    """Collects problems so that all are reported at once; leaving the ``with`` block raises them.

    >>> with Problems() as problems:
    ...     problems.add("tp 3 does not divide 8 heads", "use 1, 2, 4 or 8")
    Traceback (most recent call last):
    toolkit.errors.ToolkitError: tp 3 does not divide 8 heads
      use 1, 2, 4 or 8
    """

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, message: str, remedy: str = "") -> None:
        """Record one problem and go on looking."""
        self.found.append(Problem(message, remedy))

    def absorb(self, error: ToolkitError) -> None:
        """Record the problems of an error that was caught."""
        self.found.extend(error.problems)

    def attempt(self, action: Callable[[], object]) -> None:
        """Do something, and record what is wrong with it if it raises ToolkitError."""
        try:
            action()
        except ToolkitError as error:
            self.absorb(error)

    def __enter__(self) -> Problems:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self.found:
            raise ToolkitError(*self.found)
