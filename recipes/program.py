"""How both training programs start and end: shared options, problems as sentences, a clean exit."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from recipes import inherited, options, quiet, ranks, refusal
from toolkit.errors import Problems, ToolkitError, reason
from toolkit.runtime import failures, native_log, refused, screen, signals
from toolkit.runtime import place as durable_place
from toolkit.runtime.lease import Lease
from toolkit.runtime.outcome import Presence, one_line
from toolkit.runtime.save_failed import SaveFailed
from toolkit.runtime.signals import StopRequest
from toolkit.runtime.watchdog import Limits, Watchdog

WITH_TORCHRUN = "start with launch.sh or train.sbatch, or with torchrun, which sets it"


def watchdog(folder: Path, rank: int, world_size: int, given: argparse.Namespace) -> Watchdog:
    """Watches this rank from here on, beginning with its start; ``stop`` it at the end."""
    limits = Limits(floor=given.hang_after, ceiling=given.hang_at_most, start_up=given.start_limit)
    made = Watchdog(folder, rank, world_size, limits)
    made.start()
    return made


def told(run: Callable[[argparse.Namespace], int], given: argparse.Namespace) -> int:
    """Run the program; problems with the inputs go to stderr as sentences, once on each node."""
    screen.keep()
    quiet.known_warnings()
    native_log.errors_only()
    if (said := inherited.note(inherited.leave_out())) and os.environ.get("RANK", "0") == "0":
        print(said, flush=True)
    try:
        return run(given)
    except KeyboardInterrupt:  # of a terminal; training ends by its own rules before (signals.py)
        print("interrupted", file=sys.stderr, flush=True)
        return 130
    except ToolkitError as error:
        options.say(*error.problems)
        refusal.of_start(given, error)
        return error.exit_code
    except failures.Told as error:
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


def require_meeting_and_folder(world_size: int, folder: Path, make: bool = True) -> None:
    """Before torch is imported: the processes can find one another, and the output can be written.

    The folder is made with ``make``; a start that is refused for something else leaves nothing behind.
    """
    with Problems() as problems:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if world_size > 1 and missing:
            problems.add(f"{' and '.join(missing)} not set, and there are {world_size} processes", WITH_TORCHRUN)
        try:
            there = folder
            if make:
                folder.mkdir(parents=True, exist_ok=True)
            else:
                there = next(each for each in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(each))
            if not there.is_dir():
                problems.add(f"cannot make {folder}: {there} is not a folder", "choose another --output-dir")
            elif not os.access(there, os.W_OK | os.X_OK):
                problems.add(f"{folder} cannot be written to", "choose another --output-dir")
        except (OSError, ValueError) as error:
            problems.add(f"cannot make {folder}: {reason(error)}", "choose another --output-dir")


@contextlib.contextmanager
def attended(folder: Path, rank: int) -> Iterator[StopRequest]:
    """A start of one rank, from here to its end: requests to stop, how it ended, the end of the process group.

    How it ended is written before the group ends, since then the other ranks fail too.
    """
    # before anything is written there: the folder may be another job's
    with _alone(folder) if rank == 0 else contextlib.nullcontext():
        failure = failures.Failure(folder, rank)
        try:
            with (
                failure.told(),
                signals.attended(folder, rank) as stop,
                failure.kept(),
                refused.in_sentences(folder, f"rank {rank} on {stop.presence.node}"),
            ):
                yield stop
        finally:
            ranks.leave()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else may train there meanwhile; where somebody does, the batch script reads it in the words of rank 0."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(Lease(folder))
        except SaveFailed as error:
            Presence(folder).failed(error.kind, one_line(error), error)
            raise
        except ToolkitError as error:
            Presence(folder).say(f"refused {error.problems[0].message}")
            raise
        stack.callback(durable_place.leave)
        yield


def ended_early(step: int, total: int) -> str:
    """The last words of a start that ``--max-steps`` has ended."""
    goes_on = "the same command without --max-steps goes on"
    return f"ended at step {step} of {total} (--max-steps), saved checkpoint-{step}; {goes_on}"


def leave(code: int) -> NoReturn:
    """End the process with this code, without tearing the interpreter down.

    Threads of torch's backends that are still in a call when Python shuts down end in std::terminate
    ("terminate called without an active exception"), which turns a finished run into a failed one. Exit
    handlers (wandb has one) have run before.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads any more, or it is closed
            stream.flush()
    os._exit(code)
