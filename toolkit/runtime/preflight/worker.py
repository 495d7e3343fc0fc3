"""One process of the all-reduces: ``python -m toolkit.runtime.preflight.worker JSON``; prints one line of JSON.

A process for each GPU of the node, or one where the plan is for processors. Each round is a process group of its own,
under a prefix of its own in one store: a pair that fails or hangs leaves the others alone.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from typing import Any

from toolkit.runtime.preflight.pairs import partner, rounds
from toolkit.runtime.preflight.request import LADDER, LONG_ENOUGH_SECONDS

REPEATS = 3


def main(text: str) -> int:
    """Work through the rounds."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    from torch import distributed

    asked: dict[str, Any] = json.loads(text)
    node, local, ranks = asked["node"], asked["local"], asked["ranks"]
    limit = datetime.timedelta(seconds=asked["seconds"])
    device = torch.device("cuda", local) if asked["cuda"] else torch.device("cpu")
    if asked["cuda"]:
        if torch.cuda.device_count() <= local:
            sys.exit(f"torch finds {torch.cuda.device_count()} GPUs here, the plan needs {ranks}")
        torch.cuda.set_device(device)
    first = node == 0 and local == 0
    store = distributed.TCPStore(  # type: ignore[attr-defined]
        asked["address"], asked["port"], asked["nodes"] * ranks, first, limit, wait_for_workers=False
    )
    results: list[dict[str, Any]] = []
    plan: list[tuple[str, list[int]]] = [(f"alone-{node}", [node])] if ranks > 1 else []
    for number, pairs in enumerate(rounds(asked["nodes"])):
        other = partner(node, pairs)
        if other is not None:
            plan.append((f"round-{number}-{min(node, other)}", sorted((node, other))))
    for name, members in plan:
        result: dict[str, Any] = {"members": members, "bytes": 0, "seconds": 0.0, "error": ""}
        try:
            rank = members.index(node) * ranks + local
            distributed.init_process_group(
                "nccl" if asked["cuda"] else "gloo",
                store=distributed.PrefixStore(name, store),  # type: ignore[attr-defined]
                rank=rank,
                world_size=len(members) * ranks,
                timeout=limit,
                device_id=device if asked["cuda"] else None,
            )
            result["bytes"], result["seconds"] = _measure(device)
        except Exception as error:  # of any library; the pair is told, and the next one goes on
            result["error"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        finally:
            if distributed.is_initialized():
                distributed.destroy_process_group()
        results.append(result)
    store.set(f"done-{node}-{local}", "yes")
    if first:  # the store lives here
        keys = [f"done-{each}-{rank}" for each in range(asked["nodes"]) for rank in range(ranks)]
        try:
            store.wait(keys, limit)
        except Exception as error:
            print(f"not all nodes came to the end: {error}", file=sys.stderr)
    print(json.dumps(results), flush=True)
    os._exit(0)  # without tearing down what a failed group may still be doing


def _measure(device: Any) -> tuple[int, float]:
    """Bytes and seconds of the largest message that was tried; all ranks agree on when to stop."""
    import torch
    from torch import distributed

    found = (0, 0.0)
    for size in LADDER if device.type == "cuda" else LADDER[:-1]:
        message = torch.zeros(size // 4, device=device)
        distributed.all_reduce(message)  # the first of a size may set up connections
        seconds = _agreed(device, _once(message, device))
        if seconds < LONG_ENOUGH_SECONDS:  # the same on all ranks, since it was agreed on
            seconds = _agreed(device, min(seconds, *(_once(message, device) for _ in range(REPEATS - 1))))
        found = (size, seconds)
        if seconds * REPEATS > LONG_ENOUGH_SECONDS:
            break
    return found


def _once(message: Any, device: Any) -> float:
    from torch import distributed

    _wait(device)
    since = time.perf_counter()
    distributed.all_reduce(message)
    _wait(device)
    return time.perf_counter() - since


def _wait(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _agreed(device: Any, seconds: float) -> float:
    import torch
    from torch import distributed

    value = torch.tensor([seconds], dtype=torch.float64, device=device)
    distributed.all_reduce(value, op=distributed.ReduceOp.MAX)
    return float(value.item())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
