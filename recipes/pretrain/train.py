"""Pretrain a GPT or Llama model with megatron-core, as a plan says.

    torchrun --nproc-per-node N -m recipes.pretrain.train --plan plan.json --megatron megatron_core.json

Tensor, pipeline (1F1B and interleaved), context, expert and data parallelism, sequence parallelism, the
distributed optimizer and recomputation are the library's; in a plan for CPUs the same code runs over gloo
(:mod:`recipes.pretrain.cpu_shim`). Data order, initial weights and learning rate follow from the contract
alone, so one contract gives the same losses on every layout, up to rounding.

Exit codes: 0 done (or done before), 2 the inputs cannot be right, 75 (0 under torchrun, which would take
it for a crash) stopped on request with a checkpoint saved: start the same command again; 77 a hang; 78 losses that
are not finite or spike (--on-nan, --on-spike). ``outcome.json`` in the output directory says which.

In the output directory: ``run.json`` and ``steps.jsonl`` (telemetry), ``checkpoint-N``, ``model`` (the result, as
``from_pretrained`` reads it) and ``FINISHED``. A second start resumes from the newest whole checkpoint, also on
another layout.
"""

from __future__ import annotations

import argparse

from recipes import option_table, program, refusal, resume
from recipes.pretrain import config, machine, validity
from toolkit.errors import Problems
from toolkit.recipe import planned_steps
from toolkit.runtime import checkpoint


def main(argv: list[str] | None = None) -> int:
    """Run the program; problems with the inputs go to stderr as sentences."""
    return program.told(run, option_table.pretrain().parse_args(argv, refusal.of_options))


def run(options: argparse.Namespace) -> int:
    """Read and check everything that needs no torch, then train."""
    plan, core, text = config.load(options.plan, options.megatron or options.plan.parent / "megatron_core.json")
    folder = options.output_dir or options.plan.parent / "run"
    rank, world_size = program.place()
    done = resume.finished(plan, folder)
    if done is not None:
        if rank == 0:
            print(f"finished before, at step {done['step']}: {folder / checkpoint.FINISHED}", flush=True)
        return 0
    with Problems() as problems:
        problems.attempt(lambda: validity.check(plan, core, world_size))
        problems.attempt(lambda: resume.require_same_experiment(plan, folder))
        total = core.training.train_steps or planned_steps(plan.contract)
        problems.attempt(lambda: option_table.require_reachable(options, total))
        problems.attempt(lambda: program.require_meeting_and_folder(world_size, folder, make=not problems.found))
    with program.attended(folder, rank) as stop:
        options.watchdog = program.watchdog(folder, rank, world_size, options)
        found = machine.detect(plan)
        from recipes.pretrain import loop

        try:
            return loop.train(plan, core, text, found, folder, stop, options)
        finally:
            options.watchdog.stop()


if __name__ == "__main__":
    program.leave(main())
