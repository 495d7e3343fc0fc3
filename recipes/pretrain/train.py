"""Pretrain a GPT or Llama model with megatron-core, as a plan says.

    torchrun --nproc-per-node N -m recipes.pretrain.train --plan plan.json --megatron megatron_core.json

Tensor, pipeline (1F1B and interleaved), context, expert and data parallelism, sequence parallelism, the
distributed optimizer and recomputation are the library's; on a machine without GPUs the same code runs over
gloo (:mod:`recipes.pretrain.cpu_shim`). Data order, initial weights and learning rate follow from the contract
alone, so one contract gives the same losses on every layout, up to rounding.

Exit codes: 0 finished (also when it was finished before), 2 bad input. Checkpoints are not written yet: a
run that is killed starts again at its first step.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from recipes import schedule
from recipes.pretrain import config, validity
from recipes.pretrain.config import CoreConfig
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.record import StepRecord
from toolkit.runtime import checkpoint, telemetry


def main(argv: list[str] | None = None) -> int:
    """Read, check, train; the problems of bad input go to stderr once, from rank 0."""
    parser = argparse.ArgumentParser(prog="recipes.pretrain.train", description="Pretrain with megatron-core.")
    parser.add_argument("--plan", required=True, metavar="plan.json")
    parser.add_argument("--megatron", required=True, metavar="megatron_core.json")
    parser.add_argument("--output-dir", default="", metavar="DIR", help="default: runs/<name of the plan>")
    arguments = parser.parse_args(argv)
    try:
        plan, core = config.load(arguments.plan, arguments.megatron)
        validity.check(plan, core, int(os.environ.get("WORLD_SIZE", "1")))
        output_dir = Path(arguments.output_dir or f"runs/{plan.name}")
        if checkpoint.finished(output_dir) is None:
            train(plan, core, output_dir, Path(arguments.plan).read_bytes())
        else:
            say(f"{output_dir} holds a finished run: nothing to do")
    except ToolkitError as error:
        if os.environ.get("RANK", "0") == "0":
            for problem in error.problems:
                print(f"error: {problem}", file=sys.stderr)
        return error.exit_code
    return 0


def say(words: str) -> None:
    """One line on stdout, from rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        print(words, flush=True)


def train(plan: Plan, core: CoreConfig, output_dir: Path, plan_text: bytes) -> None:
    """The process group around the run: it ends with it, also by an error."""
    import torch

    from recipes.pretrain import machine as machines

    machine = machines.detect()
    if machine.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    os.environ.setdefault("MASTER_ADDR", "localhost")  # without torchrun: one process
    for name, value in (("MASTER_PORT", "0"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    torch.distributed.init_process_group(machine.backend)
    try:
        _train(plan, core, output_dir, plan_text, machine)
    finally:
        torch.distributed.destroy_process_group()


def _train(plan: Plan, core: CoreConfig, output_dir: Path, plan_text: bytes, machine: Any) -> None:
    import torch
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from recipes.pretrain import data, forward, model

    windows = data.windows(plan, core)
    contract, training = config.learning_rate_contract(plan, core), core.training
    steps = schedule.total_steps(contract, len(windows))
    built = model.build(core, machine, plan.model.vocab_size)
    for note in built.notes:
        say(f"note: {note}")
    run_schedule, forward_step = get_forward_backward_func(), forward.forward_step(machine.device)
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    world, global_rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    record = telemetry.run_record(plan.name, plan_text, world, machine.device)
    log = telemetry.Telemetry(output_dir, record, global_rank)
    for step in range(steps):
        started = time.perf_counter()
        for chunk in built.chunks:
            chunk.zero_grad_buffer()
        built.optimizer.zero_grad()
        iterators = [data.micro_batches(windows, step, training, ranks, rank) for _ in built.chunks]
        several = len(iterators) > 1  # the interleaved schedule takes lists, the others one of each
        results = run_schedule(
            forward_step_func=forward_step,
            data_iterator=iterators if several else iterators[0],
            model=built.chunks if several else built.chunks[0],
            num_microbatches=plan.strategy.gradient_accumulation_steps,
            seq_length=training.sequence_length,
            micro_batch_size=training.micro_batch_size,
            forward_only=False,
        )
        rate = schedule.learning_rate(step, steps, contract)
        model.set_learning_rate(built.optimizer, rate, contract.weight_decay)
        _, gradient_norm, _ = built.optimizer.step()
        loss = forward.mean_loss(results, machine.device)
        seconds = time.perf_counter() - started
        log.step(
            StepRecord(
                step=step + 1,
                seconds=seconds,
                tokens=training.global_batch_size * training.sequence_length,
                loss=_finite(loss),
                learning_rate=rate,
                gradient_norm=_finite(gradient_norm),
                peak_memory_bytes=torch.cuda.max_memory_allocated() if machine.device == "cuda" else None,
                samples_seen=(step + 1) * training.global_batch_size,
            )
        )
        say(f"step {step + 1}/{steps}  loss {loss:.4f}  lr {rate:.3e}  {seconds:.3f} s")
    log.close()
    if global_rank == 0:
        checkpoint.mark_finished(output_dir, {"step": steps, "loss": loss})
    torch.distributed.barrier()


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None  # JSON has no NaN


if __name__ == "__main__":
    sys.exit(main())
