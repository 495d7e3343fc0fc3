"""What a dry run is asked and what it answers: two JSON files between the command and the process it starts."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit import plan as plans
from toolkit.errors import ToolkitError
from toolkit.plan import Plan

Answer = dict[str, Any]


def main(count: Callable[[Plan, str, int], Answer], argv: list[str]) -> int:
    """A dry run's program: ``PLAN.json KIND RANK ANSWER.json``; a plan it cannot run is answered, too."""
    warnings.filterwarnings("ignore")
    plan_file, kind, rank, answer_file = argv
    started = time.perf_counter()
    try:
        answer = count(plans.load(Path(plan_file).read_text(), plan_file), kind, int(rank))
    except ToolkitError as error:
        answer = {"problems": [[problem.message, problem.remedy] for problem in error.problems]}
    answer["seconds"] = time.perf_counter() - started
    Path(answer_file).write_text(json.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # libraries with a fake group may hang or abort while they are torn down
