"""One mistake each, as it would have been written: functions that change a library or a program of this process.

Each is known from other projects. None of them changes what is traced or how it is judged.
"""

from __future__ import annotations

import os

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
