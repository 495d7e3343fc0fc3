"""How options of the training programs are read: every one has a range, and all that is wrong is said at once.

Which options there are, with their ranges, stands in :mod:`recipes.option_table`. The words of a command line are
``--name VALUE`` or ``--name=VALUE``; a word that begins with two hyphens is never the value of the one before it.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from toolkit.errors import Problem, Problems, ToolkitError

SAID_BY_THE_FIRST = 10.0  # seconds in which local rank 0 says a problem that all ranks have
HELP = ("-h", "--help")
REQUIRED = object()  # the default of an option that must be given


class Option(NamedTuple):
    """``read`` makes the value of its text, or raises ValueError with what it may be; None: it takes no value."""

    name: str
    read: Callable[[str], Any] | None
    default: Any
    help: str
    metavar: str = ""
    group: str = ""

    @property
    def key(self) -> str:
        """Its attribute."""
        return self.name.lstrip("-").replace("-", "_")


Rule = Callable[
    [argparse.Namespace, Collection[str]], Iterator[Problem]
]  # over options, and the keys that are in order


class Parser:
    """Reads the options of a table; ``rules`` are relations between several of them."""

    def __init__(self, prog: str, description: str, table: Sequence[Option], rules: Sequence[Rule] = ()) -> None:
        self.prog, self.description, self.rules = prog, description, rules
        self.table = {option.name: option for option in table}
        assert len(self.table) == len(table)

    def parse_args(
        self,
        argv: Sequence[str] | None = None,
        refused: Callable[[Sequence[str], ToolkitError], object] = lambda words, error: None,
    ) -> argparse.Namespace:
        """The options; ends the program with all that is wrong with them, once on each node, then told ``refused``."""
        words = sys.argv[1:] if argv is None else list(argv)
        if any(word in HELP for word in words):
            print(self.usage(), end="")
            sys.exit(0)
        try:
            return self.read(words)
        except ToolkitError as error:
            say(*error.problems)
            refused(words, error)
            sys.exit(error.exit_code)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The options; raises ToolkitError with all problems."""
        given = argparse.Namespace(**{option.key: option.default for option in self.table.values()})
        wrong: set[str] = set()
        with Problems() as problems:
            rest = iter(enumerate(words))
            for at, word in rest:
                name, is_joined, text = word.partition("=")
                option = self.table.get(name)
                has_next = at + 1 < len(words) and not words[at + 1].startswith("--")
                if option is None:
                    problems.add(f"there is no option {word!r}", self._near(name))
                    if name.startswith("--") and not is_joined and has_next:
                        next(rest)  # its value, whatever it was meant to be
                    continue
                if option.read is not None and not is_joined:
                    if not has_next:
                        problems.add(f"{name} has no value", f"give one: {_form(option)}")
                        wrong.add(option.key)
                        continue
                    text = next(rest)[1]
                try:
                    setattr(given, option.key, _value(option, text, bool(is_joined)))
                except ValueError as error:
                    problems.add(f"{name} is {text!r}", str(error))
                    wrong.add(option.key)
            wrong |= self._missing(given, wrong, problems)
            in_order = {option.key for option in self.table.values()} - wrong
            for rule in self.rules:
                problems.found += rule(given, in_order)
        return given

    def _missing(self, given: argparse.Namespace, wrong: set[str], problems: Problems) -> set[str]:
        found = {key for key, value in vars(given).items() if value is REQUIRED} - wrong
        for option in self.table.values():
            if option.key in found:
                problems.add(f"{option.name} is missing", f"give it: {_form(option)}, {option.help}")
        return found

    def _near(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.table, n=1, cutoff=0.7)
        all_of_them = f"python3 -m {self.prog} --help tells all options"
        return f"did you mean {near[0]}? {all_of_them}" if near else all_of_them

    def usage(self) -> str:
        """What ``--help`` prints."""
        shown = argparse.ArgumentParser(prog=self.prog, description=self.description)
        groups: dict[str, Any] = {"": shown}
        for option in self.table.values():
            if option.group not in groups:
                groups[option.group] = shown.add_argument_group(option.group)
            more: dict[str, Any] = {"help": option.help.replace("%", "%%")}
            if option.read is None:
                more["action"] = "store_true"
            else:
                more |= {"metavar": _metavar(option), "required": option.default is REQUIRED}
            groups[option.group].add_argument(option.name, **more)
        return shown.format_help()


def _value(option: Option, text: str, is_joined: bool) -> Any:
    if option.read is not None:
        return option.read(text)
    if is_joined:
        raise ValueError("it takes no value: give it alone, or leave it out")
    return True


def _metavar(option: Option) -> str:
    return option.metavar or option.key.upper()


def _form(option: Option) -> str:
    return f"{option.name} {_metavar(option)}"


def say(*problems: Problem) -> None:
    """Problems as sentences on stderr, once on each node; in a job of Slurm once.

    The first process that ends makes torchrun stop the others, and srun the other nodes. So those that are not local
    rank 0, or rank 0, wait for it to say what all of them found, and are stopped as it ends; one that is left alone
    says what it alone has.
    """
    which = "RANK" if os.environ.get("TOOLKIT_ATTEMPT") else "LOCAL_RANK"
    if os.environ.get(which, "0").strip("0").isdecimal():  # neither 0 nor something that is no rank
        time.sleep(SAID_BY_THE_FIRST)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr, flush=True)


def whole(least: int, most: int, off: str = "") -> Callable[[str], int]:
    """A whole number from ``least`` to ``most``; ``off`` tells what 0 means."""

    def read(text: str) -> int:
        try:
            number = int(text) if text.isascii() else None
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise ValueError(f"give a whole number from {least:,} to {most:,}{f' (0: {off})' if off else ''}")
        return number

    return read


def number(above: float, most: float, usual: str) -> Callable[[str], float]:
    """A finite number more than ``above``, at most ``most``."""

    def read(text: str) -> float:
        if not above < (value := _float(text)) <= most:
            raise ValueError(f"give a number above {above:g}, at most {most:,.0f}, say {usual}")
        return value

    return read


def seconds(least: float, most: float, off: str = "") -> Callable[[str], float]:
    """A time from ``least`` to ``most``; ``off`` tells what 0 means, where it may be."""

    def read(text: str) -> float:
        if not (least <= (value := _float(text)) <= most or (off and value == 0.0)):
            zero = f", or 0: {off}" if off else ""
            raise ValueError(f"give a number of seconds from {least:,g} to {most:,.0f}{zero}")
        return value

    return read


def _float(text: str) -> float:
    try:
        return float(text) if text.isascii() else math.nan
    except ValueError:
        return math.nan


def share() -> Callable[[str], float]:
    """A number from 0 to less than 1."""

    def read(text: str) -> float:
        if not 0.0 <= (value := _float(text)) < 1.0:
            raise ValueError("give a share, from 0 to less than 1")
        return value

    return read


def text(value: str) -> str:
    """Any text but an empty one."""
    if not value.strip() or "\0" in value:
        raise ValueError("give a text that is not empty")
    return value


def one_of(*words: str) -> Callable[[str], str]:
    """One of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"give {', '.join(words[:-1])} or {words[-1]}")
        return text

    return read
