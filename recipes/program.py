"""How both training programs start and end: shared options, problems as sentences, a clean exit."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from recipes import quiet, ranks
from toolkit.errors import Problems, ToolkitError, reason
from toolkit.runtime import signals
from toolkit.runtime.lease import Lease
from toolkit.runtime.signals import StopRequest
from toolkit.runtime.watchdog import Limits, Watchdog

SAID_BY_THE_FIRST = 10.0  # seconds in which local rank 0 says a problem that all ranks have
WITH_TORCHRUN = "start with launch.sh or train.sbatch, or with torchrun, which sets it"


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that every training program has."""
    made = argparse.ArgumentParser(prog=name, description=description)
    made.add_argument("--plan", type=Path, required=True, help="plan.json, from toolkit plan --out")
    made.add_argument("--output-dir", type=Path, help="default: the folder 'run' beside the plan")
    made.add_argument("--max-steps", type=int, default=0, help="end after this step; the schedule stays the plan's")
    made.add_argument("--save-steps", type=int, default=500, help="steps between checkpoints (default 500)")
    made.add_argument("--keep", type=int, default=2, help="whole checkpoints to keep (default 2)")
    made.add_argument("--keep-every", type=int, default=0, metavar="STEPS", help="and for good those of every so many")
    made.add_argument("--async-save", action="store_true", help="go on training while a checkpoint is brought to disk")
    made.add_argument("--durable", default="", metavar="URL", help="copy checkpoints there (s3://, file://, ...)")
    made.add_argument("--trace", type=Path, metavar="FOLDER", help="write weights and gradients of every step there")
    made.add_argument(
        "--hang-after", type=float, default=120.0, help="least seconds before a step counts as hanging (120; 0: never)"
    )
    made.add_argument("--hang-at-most", type=float, default=1800.0, help="limit while no durations are known (1800)")
    made.add_argument(
        "--start-limit", type=float, default=86400.0, help="seconds that the start may take, tokenising too (86400)"
    )
    return made


def watchdog(folder: Path, rank: int, world_size: int, options: argparse.Namespace) -> Watchdog:
    """Watches this rank from here on, beginning with its start; ``stop`` it at the end."""
    limits = Limits(floor=options.hang_after, ceiling=options.hang_at_most, start_up=options.start_limit)
    made = Watchdog(folder, rank, world_size, limits)
    made.start()
    return made


def told(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run the program; problems with the inputs go to stderr as sentences, once on each node.

    The first process that ends makes torchrun stop the others. So those that are not local rank 0 wait for it to
    say what all of them found, and are stopped as it ends; one that is left alone says what it alone has.
    """
    quiet.known_warnings()
    try:
        return run(options)
    except KeyboardInterrupt:  # of a terminal; training ends by its own rules before (signals.py)
        print("interrupted", file=sys.stderr, flush=True)
        return 130
    except ToolkitError as error:
        if os.environ.get("LOCAL_RANK", "0").strip("0").isdecimal():  # neither 0 nor something that is no rank
            time.sleep(SAID_BY_THE_FIRST)
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr, flush=True)
        return error.exit_code


def place() -> tuple[int, int]:
    """Rank and number of processes, from what torchrun sets; one process where nothing is set."""
    found = {}
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        text = os.environ.get(name, default)
        if not (text.isascii() and text.isdigit()):
            raise ToolkitError(f"{name} is {text!r}, not a number", remedy=WITH_TORCHRUN)
        found[name] = int(text)
    if found["RANK"] >= max(found["WORLD_SIZE"], 1):
        raise ToolkitError(f"RANK is {found['RANK']} of WORLD_SIZE {found['WORLD_SIZE']}", remedy=WITH_TORCHRUN)
    return found["RANK"], found["WORLD_SIZE"]


def require_meeting_and_folder(world_size: int, folder: Path) -> None:
    """Before torch is imported: the processes can find one another, and the output can be written."""
    with Problems() as problems:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if world_size > 1 and missing:
            problems.add(f"{' and '.join(missing)} not set, and there are {world_size} processes", WITH_TORCHRUN)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                problems.add(f"{folder} cannot be written to", "choose another --output-dir")
        except (OSError, ValueError) as error:
            problems.add(f"cannot make {folder}: {reason(error)}", "choose another --output-dir")


@contextlib.contextmanager
def attended(folder: Path, rank: int) -> Iterator[StopRequest]:
    """A start of one rank, from here to its end: requests to stop, how it ended, the end of the process group.

    How it ended is written before the group ends, since then the other ranks fail too.
    """
    # before anything is written there: the folder may be another job's
    with Lease(folder) if rank == 0 else contextlib.nullcontext():
        try:
            with signals.attended(folder, rank) as stop:
                yield stop
        finally:
            ranks.leave()


def leave(code: int) -> NoReturn:
    """End the process with this code, without tearing the interpreter down.

    Threads of torch's backends that are still in a call when Python shuts down end in std::terminate
    ("terminate called without an active exception"), which turns a finished run into a failed one. Exit
    handlers (wandb has one) have run before.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
