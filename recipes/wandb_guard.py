"""Training goes on where wandb fails: it only tells of the run, and ``steps.jsonl`` has every step.

wandb (0.31) sends through a process beside the program. Where that is killed (the kernel's choice when memory runs
out), the next ``log`` raises ``ConnectionResetError``; where it cannot be reached at the start, ``init`` raises errors
of several kinds, of which ``wandb.Error`` is but one. So every call goes through a guard, and after the first failure
none is made any more; the next start tries again, and sends what is missing (:mod:`recipes.wandb_rows`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any


class Guard:
    """One for a start of the program."""

    def __init__(self) -> None:
        self.failed = False

    def __call__(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call; None instead of an error, and from then on."""

        @functools.wraps(call)
        def guarded(*given: Any, **named: Any) -> Any:
            if self.failed:
                return None
            try:
                return call(*given, **named)
            except Exception as error:
                self._fail(error)
                return None

        return guarded

    def _fail(self, error: Exception) -> None:
        self.failed = True
        why = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"note: training goes on, and nothing more is reported to wandb: {why}", flush=True)
        with contextlib.suppress(Exception):  # else it tries again when the interpreter ends, and shows how it failed
            import wandb

            wandb.teardown()
