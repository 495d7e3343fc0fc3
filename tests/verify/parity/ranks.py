"""The ranks of a faulty program without torchrun, which takes longer than what they compute."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from toolkit.plan import Plan
from toolkit.verify.parity.start import arguments, environment, outcome, write
from toolkit.verify.parity.traces import Run

LIMIT = 300.0  # seconds of a run


def start(plan: Plan, folder: Path, steps: int, fault: str = "") -> Run:
    """As :func:`toolkit.verify.parity.start.start`; the first rank that fails ends the others, as torchrun does."""
    write(plan, folder)
    module = ("tests.verify.parity.faulty", fault) if fault else (f"recipes.{plan.program}.train",)
    ranks, port = plan.cluster.num_gpus, _free_port()
    meeting = {
        "WORLD_SIZE": f"{ranks}",
        "LOCAL_WORLD_SIZE": f"{ranks}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    processes, errors = [], [folder / f"stderr-{rank}" for rank in range(ranks)]
    for rank, path in enumerate(errors):
        own = meeting | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} if ranks > 1 else {}
        with path.open("w") as said:
            command = [sys.executable, "-m", *module, *arguments(folder, steps)]
            processes.append(subprocess.Popen(command, env=environment() | own, stdout=subprocess.DEVNULL, stderr=said))
    end = time.monotonic() + LIMIT
    codes: list[int | None] = [None] * ranks
    try:
        while None in codes and not any(codes) and time.monotonic() < end:
            time.sleep(0.02)
            codes = [each.poll() for each in processes]
    finally:
        for each in processes:
            each.kill()
            each.wait()
    code = next((each for each in codes if each), 0 if None not in codes else 124)
    return outcome(plan, folder, code, "".join(path.read_text() for path in errors))


def _free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
