"""How both training programs start and end: shared options, problems as sentences, a clean exit."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from toolkit.errors import ToolkitError


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that every training program has."""
    made = argparse.ArgumentParser(prog=name, description=description)
    made.add_argument("--plan", type=Path, required=True, help="plan.json, from toolkit plan --out")
    made.add_argument("--output-dir", type=Path, help="default: the folder 'run' beside the plan")
    made.add_argument("--max-steps", type=int, default=0, help="end after this step; the schedule stays the plan's")
    made.add_argument("--save-steps", type=int, default=500, help="steps between checkpoints (default 500)")
    made.add_argument("--keep", type=int, default=2, help="whole checkpoints to keep (default 2)")
    return made


def told(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run the program; problems with the inputs go to stderr as sentences, once on each node."""
    try:
        return run(options)
    except ToolkitError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            for problem in error.problems:
                print(f"error: {problem}", file=sys.stderr, flush=True)
        return error.exit_code


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
