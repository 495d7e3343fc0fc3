"""Options of the training programs: numbers in their ranges, and what is wrong with them said once on each node."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from toolkit.errors import Problem

SAID_BY_THE_FIRST = 10.0  # seconds in which local rank 0 says a problem that all ranks have
REFUSED = 2  # exit code for inputs that cannot be right


class Parser(argparse.ArgumentParser):
    """Like argparse's, without its usage of many lines."""

    def error(self, message: str) -> NoReturn:
        """End the program with what is wrong."""
        say(Problem(message, f"python3 -m {self.prog} --help tells all options"))
        sys.exit(REFUSED)


def say(*problems: Problem) -> None:
    """Problems as sentences on stderr, once on each node.

    The first process that ends makes torchrun stop the others. So those that are not local rank 0 wait for it to
    say what all of them found, and are stopped as it ends; one that is left alone says what it alone has.
    """
    if os.environ.get("LOCAL_RANK", "0").strip("0").isdecimal():  # neither 0 nor something that is no rank
        time.sleep(SAID_BY_THE_FIRST)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr, flush=True)


def count(least: int) -> Callable[[str], int]:
    """A whole number of at least ``least``."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {least} or more")
        return number

    return read


def seconds(text: str) -> float:
    """A finite time, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0.0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")
    return number
