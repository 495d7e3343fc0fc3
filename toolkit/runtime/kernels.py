"""Times of single kernels on this machine: matrix products, memory traffic, and collectives, by size.

    python -m toolkit.runtime.kernels cuda|cpu bf16|fp16|fp32 REPORT.json

Each time is the least of several repetitions after a first one that is dropped: whatever else runs only adds. On
a GPU collectives run over NCCL on all GPUs that this machine shows, where there are two or more; on processors two
processes talk over gloo. Random operands: products of zeros draw less power and run faster.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MATMUL = {"cuda": (256, 512, 1024, 2048, 4096, 8192), "cpu": (64, 128, 256, 512, 1024)}  # square, side
TRAFFIC = {"cuda": 2**30, "cpu": 2**26}  # bytes of one operand: far beyond any cache of a GPU
MESSAGES = {"cuda": tuple(2**k for k in range(12, 31, 2)), "cpu": tuple(2**k for k in range(12, 25, 2))}
SUSTAINED = {"cuda": 5.0, "cpu": 0.5}  # seconds of one product after another
REPETITIONS = 7
LEAST_SECONDS = 0.01  # of one measurement: several calls where one is shorter


def timer(device: str) -> Callable[[Callable[[], Any]], float]:
    """Seconds of one call of a function."""
    import torch

    def synchronize() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def seconds(call: Callable[[], Any]) -> float:
        def once(calls: int) -> float:
            synchronize()
            since = time.perf_counter()
            for _ in range(calls):
                call()
            synchronize()
            return (time.perf_counter() - since) / calls

        once(1)
        calls = max(1, min(1000, int(LEAST_SECONDS / max(once(1), 1e-9))))
        return min(once(calls) for _ in range(REPETITIONS))

    return seconds


def matmul(device: str, precision: str) -> list[dict[str, float]]:
    """Square products by side; the last row is the largest again, for seconds on end."""
    import torch

    seconds = timer(device)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    rows: list[dict[str, float]] = []
    for side in MATMUL[device]:
        left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        found = torch.empty_like(left)
        product = functools.partial(torch.mm, left, right, out=found)
        taken = seconds(product)
        moved = 3.0 * side * side * left.element_size()
        rows.append({"side": side, "flop": 2.0 * side**3, "moved_bytes": moved, "seconds": taken})
    calls = max(1, int(SUSTAINED[device] / rows[-1]["seconds"]))
    if device == "cuda":
        torch.cuda.synchronize()
    since = time.perf_counter()
    for _ in range(calls):
        product()
    if device == "cuda":
        torch.cuda.synchronize()
    return [*rows, rows[-1] | {"seconds": (time.perf_counter() - since) / calls, "sustained": 1.0}]


def traffic(device: str) -> list[dict[str, Any]]:
    """A copy, and an addition of two operands: bytes that cross the memory bus, and the seconds they take."""
    import torch

    seconds, size = timer(device), TRAFFIC[device]
    source, other = (torch.randn(size // 4, device=device) for _ in range(2))
    target = torch.empty_like(source)
    return [
        {"kernel": "copy", "moved_bytes": 2.0 * size, "seconds": seconds(lambda: target.copy_(source))},
        {"kernel": "add", "moved_bytes": 3.0 * size, "seconds": seconds(lambda: torch.add(source, other, out=target))},
    ]


def _collectives(rank: int, world: int, device: str, store: str, report: str) -> None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{store}", rank=rank, world_size=world
    )
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name from torch 2.13 on
    rows = []
    for size in MESSAGES[device]:
        whole = torch.ones(size // 4, device=device)
        share = whole[: max(size // 4 // world, 1)].clone()
        gathered = torch.empty(share.numel() * world, device=device)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": functools.partial(dist.all_reduce, whole),
            "all_gather": functools.partial(gather, gathered, share),
        }
        for name, call in calls.items():
            sent = (2.0 if name == "all_reduce" else 1.0) * (world - 1.0) / world * size
            rows.append(
                {"operation": name, "ranks": world, "bytes": size, "sent_bytes": sent, "seconds": _alike(call, device)}
            )
    if rank == 0:
        Path(report).write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def _alike(call: Callable[[], Any], device: str) -> float:
    """Every rank makes the same number of calls, or they would wait for one another for ever."""
    import torch

    taken = []
    for _ in range(REPETITIONS + 1):
        since = time.perf_counter()
        for _ in range(10):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append((time.perf_counter() - since) / 10)
    return min(taken[1:])


def collectives(device: str) -> list[dict[str, Any]]:
    """All-reduce and all-gather by size; nothing on a machine with one GPU."""
    import torch
    from torch import multiprocessing as processes

    world = torch.cuda.device_count() if device == "cuda" else 2
    if world < 2:
        return []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        processes.spawn(  # type: ignore[attr-defined, no-untyped-call]
            _collectives, args=(world, device, str(Path(folder) / "store"), str(report)), nprocs=world
        )
        found: list[dict[str, Any]] = json.loads(report.read_text())
    return found


def main(argv: list[str]) -> None:
    """Measure everything and write the report."""
    device, precision, report = argv
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    found = {
        "matmul": matmul(device, precision),
        "traffic": traffic(device),
        "collectives": collectives(device),
    }
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
