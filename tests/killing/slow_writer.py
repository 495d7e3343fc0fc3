"""The pretraining program with a disk so slow that every asynchronous write takes some steps: ``SLOW_SECONDS`` each."""

from __future__ import annotations

import os
import time
from typing import Any

from recipes import program
from recipes.pretrain import train, writers

write = writers._write_all


def slowly(*positional: Any, **keywords: Any) -> Any:
    """In the forked process."""
    time.sleep(float(os.environ["SLOW_SECONDS"]))
    return write(*positional, **keywords)


if __name__ == "__main__":
    writers._write_all = slowly
    program.leave(train.main())
