"""Either training program in trouble: ``python -m tests.recipes.troubled PROGRAM TROUBLE STEP RANK ...``.

full     from this step on no file may grow beyond 64 KiB: a real refusal of the system in the middle of a save
bug      the rank raises an exception after this step
killed   the rank kills itself after this step
gone     rank 0 deletes the output directory after this step
unheard  the process that sends the rank's reports to wandb is killed after this step
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
from typing import Any

import psutil

RANK = int(os.environ.get("RANK", "0"))
LARGEST = 64 * 2**10


def trouble(kind: str, step: int, rank: int) -> None:
    """Once all ranks have judged the step."""
    from recipes.setbacks import Setbacks

    look = Setbacks.look

    def troubled(self: Setbacks, now: int, *more: Any) -> bool:
        found = look(self, now, *more)
        if now == step and kind == "full":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, -1))
        if now == step and rank == RANK:
            if kind == "bug":
                raise ValueError("a bug of the program")
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "gone":
                shutil.rmtree(self.folder)
            if kind == "unheard":
                senders = [each for each in psutil.Process().children() if each.name() == "wandb-core"]
                assert senders, "wandb has no such process any more"
                for each in senders:
                    each.kill()
        return found

    Setbacks.look = troubled  # type: ignore[method-assign]


def main() -> int:
    """Into the program, with trouble ahead."""
    program, kind, step, rank, *arguments = sys.argv[1:]
    if program == "pretrain" and "CUDA_VISIBLE_DEVICES" not in os.environ:
        from recipes.pretrain import machine

        machine.on_cpu()  # the library is imported below, and must find the shim
    trouble(kind, int(step), int(rank))
    if program == "finetune":
        from recipes.finetune import train

        return train.main(arguments)
    from recipes.pretrain import train as pretrain

    return pretrain.main(arguments)


if __name__ == "__main__":
    from recipes import program

    program.leave(main())
