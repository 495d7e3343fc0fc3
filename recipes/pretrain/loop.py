"""The run itself: data, model, resume, and the loop over optimizer steps."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

from recipes import resume, schedule
from recipes.pretrain import checkpoints, data, forward, model
from recipes.pretrain.config import CoreConfig, learning_rate_contract
from recipes.pretrain.machine import Machine
from recipes.pretrain.model import Built
from toolkit.plan import Plan
from toolkit.record import StepRecord
from toolkit.runtime import checkpoint
from toolkit.runtime.signals import StopRequest, stopped_exit_code
from toolkit.runtime.telemetry import Telemetry, run_record, write_durably


def train(
    plan: Plan,
    core: CoreConfig,
    plan_text: bytes,
    machine: Machine,
    folder: Path,
    stop: StopRequest,
    options: argparse.Namespace,
) -> int:
    """Train to the end, to ``--max-steps`` or until asked to stop; returns the exit code."""
    torch.distributed.init_process_group(machine.backend)
    rank = torch.distributed.get_rank()
    say = print if rank == 0 else _silent
    windows = data.windows(plan, core)
    contract = learning_rate_contract(plan, core)
    total = schedule.total_steps(contract, len(windows))
    last = min(total, options.max_steps) if options.max_steps > 0 else total
    built = model.build(core, machine, plan.model.vocab_size)
    start = checkpoints.resume(plan, folder, built, rank)
    for note in built.notes:
        say(f"note: {note}")
    say(
        f"data: {len(windows)} sequences of {windows.sequence_length} tokens;"
        f" {total} steps of {contract.global_batch_size} sequences"
    )
    say(f"output: {folder}" + (f", resuming after step {start}" if start else ""), flush=True)
    record = run_record(plan.name, plan_text, torch.distributed.get_world_size(), machine.name)
    telemetry = Telemetry(folder, record, rank)
    if rank == 0 and not (folder / "plan.json").exists():
        write_durably(folder / "plan.json", plan_text)

    stopped, loss = False, float("nan")
    for step in range(start + 1, last + 1):
        started = time.perf_counter()
        rate = schedule.learning_rate(step - 1, total, contract)
        model.set_learning_rate(built.optimizer, rate, contract.weight_decay)
        loss, gradient_norm = optimizer_step(built, core, windows, step, machine.device)
        telemetry.step(
            StepRecord(
                step=step,
                seconds=time.perf_counter() - started,
                tokens=contract.global_batch_size * contract.sequence_length,
                loss=_finite(loss),
                learning_rate=rate,
                gradient_norm=_finite(gradient_norm),
                peak_memory_bytes=torch.cuda.max_memory_allocated() if machine.device == "cuda" else None,
                samples_seen=step * contract.global_batch_size,
            )
        )
        seconds = time.perf_counter() - started
        say(f"step {step}/{total}  loss {loss:.4f}  learning rate {rate:.3g}  {seconds:.2f} s", flush=True)
        stopped = stop.agreed(machine.device)
        if stopped or step == last or (options.save_steps > 0 and step % options.save_steps == 0):
            checkpoints.save(plan, folder, built, step, options.keep)
        if stopped and step < last:
            break
    telemetry.close()
    if stopped and step < last:
        say(f"stopped after step {step} of {total} ({stop.reason}); the same command goes on from there", flush=True)
        return stopped_exit_code()
    if last == total and rank == 0:
        checkpoint.mark_finished(folder, resume.facts(plan) | {"step": total, "loss": loss})
        say(f"finished: {folder}", flush=True)
    return 0


def optimizer_step(built: Built, core: CoreConfig, windows: data.Windows, step: int, device: str) -> tuple[float, Any]:
    """One global batch through the library's schedule and one update; the mean loss per token and the gradient norm."""
    training = core.training
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    for chunk in built.chunks:
        chunk.zero_grad_buffer()
    built.optimizer.zero_grad()
    batches = [data.micro_batches(windows, step - 1, training, ranks, rank) for _ in built.chunks]
    several = len(built.chunks) > 1  # the interleaved schedule takes lists, the others one of each
    results = get_forward_backward_func()(
        forward_step_func=forward.forward_step(device),
        data_iterator=batches if several else batches[0],
        model=built.chunks if several else built.chunks[0],
        num_microbatches=training.global_batch_size // (training.micro_batch_size * ranks),
        seq_length=training.sequence_length,
        micro_batch_size=training.micro_batch_size,
        forward_only=False,
    )
    _, gradient_norm, _ = built.optimizer.step()
    return forward.mean_loss(results, device), gradient_norm


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None  # JSON has no NaN


def _silent(*_: Any, **__: Any) -> None:
    """What ranks other than 0 say."""
