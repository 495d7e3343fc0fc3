"""What torch's native code logs: errors alone, unless asked otherwise.

Its warnings are one line or more of every process at every start and end, of things that are as they should be: host
names that the network does not know backwards, and a launcher that leaves before another. Errors stay, NCCL's too; so
do exceptions and Python's warnings, which are none of this log.
"""

from __future__ import annotations

import logging
import os

LEVEL, DETAIL = "TORCH_CPP_LOG_LEVEL", "TORCH_DISTRIBUTED_DEBUG"  # torch 2.13 reads them as it is imported
LAUNCHER = "LOGLEVEL"  # of torch's launcher, in capitals; over any other name the import ends


def errors_only() -> None:
    """Before torch is imported; also for the processes that are started here."""
    if DETAIL not in os.environ:  # what it asks for are INFO lines
        os.environ.setdefault(LEVEL, "ERROR")
    asked = os.environ.pop(LAUNCHER, "").upper()
    if asked in logging.getLevelNamesMapping():
        os.environ[LAUNCHER] = asked
