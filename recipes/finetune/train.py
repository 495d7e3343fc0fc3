"""Fine-tune what a plan says, with the Hugging Face Trainer on DDP, DeepSpeed or FSDP.

    torchrun --nproc-per-node N -m recipes.finetune.train --plan plan.json [--deepspeed ds_config.json]
             [--eval-steps N] [--merge]

Exit codes: 0 done (or done before), 2 the inputs cannot be right, 75 (0 under torchrun, which would take
it for a crash) stopped on request with a checkpoint saved: start the same command again; 77 a hang; 78 losses that
are not finite or spike (--on-nan, --on-spike). ``outcome.json`` in the output directory says which.

In the output directory: ``run.json``, ``steps.jsonl`` and ``evaluations.jsonl`` (telemetry), ``checkpoint-N``,
``model`` (the result, see result.py) and ``FINISHED``. A second start resumes from the newest whole checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from recipes import option_table, program, ranks, refusal, resume, schedule, setbacks, stragglers
from recipes.finetune import arguments, checks, evaluations, files, libraries, material, objective, padding, result
from recipes.finetune import model as models
from recipes.tokenizer import load_tokenizer
from toolkit import plan as plans
from toolkit.errors import Problems
from toolkit.plan import Plan
from toolkit.recipe import planned_steps, warmup_steps
from toolkit.runtime import checkpoint, durable, lease, sums, together
from toolkit.runtime.saver import Saver
from toolkit.runtime.signals import StopRequest, stopped_exit_code
from toolkit.runtime.telemetry import Telemetry, run_record


def main(argv: list[str] | None = None) -> int:
    """Run the program; problems with the inputs go to stderr as sentences."""
    return program.told(run, option_table.finetune().parse_args(argv, refusal.of_options))


def run(options: argparse.Namespace) -> int:
    """Read and check everything that needs no torch, then train."""
    text = files.read(options.plan)
    plan = plans.load(text, str(options.plan))
    folder = options.output_dir or options.plan.parent / "run"
    rank, world_size = program.place()
    done = resume.finished(plan, folder)
    if done is not None:
        if rank == 0:
            print(f"finished before, at step {done['step']}: {folder / checkpoint.FINISHED}", flush=True)
        return 0
    ds_config = files.ds_config_of(plan, options.deepspeed, options.plan)
    with Problems() as problems:
        problems.attempt(lambda: option_table.require_reachable(options, planned_steps(plan.contract)))
        problems.attempt(lambda: resume.require_same_experiment(plan, folder))
        problems.attempt(lambda: checks.check(plan, world_size, ds_config, here=True))
        problems.attempt(lambda: checks.require_no_pattern(plan, folder))
        problems.attempt(lambda: program.require_meeting_and_folder(world_size, folder, make=not problems.found))
    with program.attended(folder, rank) as stop:
        options.watchdog = program.watchdog(folder, rank, world_size, options)
        try:
            return _train(plan, text, ds_config, folder, stop, options)
        finally:
            options.watchdog.stop()


def _train(
    plan: Plan,
    text: bytes,
    ds_config: dict[str, Any] | None,
    folder: Path,
    stop: StopRequest,
    options: argparse.Namespace,
) -> int:
    report_to = libraries.environment(plan, folder)
    import torch
    from transformers import PrinterCallback

    libraries.prepare(plan)
    keywords = arguments.training_arguments(
        plan, str(folder), ds_config, options.save_steps, report_to, options.eval_steps
    )
    training = objective.training_arguments(plan, keywords | libraries.hybrid_sharding(plan))  # makes the process group
    if plan.strategy.framework == "deepspeed" and checks.is_cpu(plan):
        import deepspeed

        # accelerate tells DeepSpeed of the group on GPUs only, and ZeRO-3 would shard over a world of 1
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    from recipes.finetune import callbacks, commits, guard, randomness, reporting, watching
    from recipes.finetune.going_on import GoOn

    rank = training.process_index
    say = print if rank == 0 else _silent
    tokenizer = load_tokenizer(plan)
    pad, *remarks = padding.settle(tokenizer, plan.model.vocab_size)
    read = material.read(plan, tokenizer, pad, folder, rank)
    for sentence in filter(None, (*remarks, read.remark)):
        say(sentence)
    total = schedule.total_steps(plan.contract, read.training)
    option_table.require_reachable(options, total)
    last = training.max_steps = min(total, options.max_steps) if options.max_steps > 0 else total
    everybody = together.group()
    start = resume.find(plan, folder, everybody, options.durable)
    if start:
        begun = start
        ranks.everywhere(lambda: material.require_same(plan, folder, begun), everybody)
    if start and start.step >= last < total:
        say(f"{folder / start.name} is at step {start.step} already, --max-steps is {last}", flush=True)
        return 0
    due = evaluations.left_out(start.step if start else 0, last, options.eval_steps, folder)
    training.eval_on_start = everybody.share(due)[0]  # a node may see an older file than another
    if start and start.converted:
        training.deepspeed_plugin.hf_ds_config.config["checkpoint"] = {"load_universal": True}
    identity = reporting.identity(start) if report_to else {}
    model, said = models.load_model(plan, tokenizer)
    if options.sync_batch_norm:
        from recipes.finetune import sync_batch_norm

        model = sync_batch_norm.convert(model, checks.is_cpu(plan))
    say(f"model: {plan.model.name}, {models.describe_size(model)}, {f'weights of {start.name}' if start else said}")
    if plan.model.num_experts > 0:  # transformers adds its balancing loss only where a config asks for router logits
        asked = getattr(model.config, "output_router_logits", False)
        say(
            f"note: {'its config balances experts over each micro batch' if asked else 'no loss balances the experts'};"
            f" the contract's expert_balance, {plan.contract.expert_balance}, is one of pretraining"
        )
    say("data: " + ", ".join(f"{value:,} {name}" for name, value in read.counts.items() if value))
    say(
        f"data: {read.training} training and {read.held_out} held-out {read.unit}"
        f" of {plan.contract.sequence_length} tokens; {total} steps of {plan.contract.global_batch_size} {read.unit}"
    )
    for sentence in option_table.remarks(options, last):
        say(sentence)
    say(f"output: {folder}" + (f", {resume.describe(start)}" if start else ""), flush=True)

    device = "cpu" if checks.is_cpu(plan) else torch.cuda.get_device_name()
    before = setbacks.known_steps(folder, options, start.step) if start else []
    telemetry = Telemetry(folder, run_record(plan.name, text, training.world_size, device), rank)
    if rank == 0 and (folder / "plan.json").resolve() != options.plan.resolve():
        durable.replace(folder / "plan.json", text)
    record = callbacks.RecordSteps(plan, telemetry, total)
    going_on = GoOn(plan, total, start, before, say)
    record.saver = Saver(folder, options.keep, options.keep_every, options.async_save, options.durable)
    back = setbacks.Setbacks(
        setbacks.rules(options, warmup_steps(plan.contract, total)),
        folder,
        plan.contract.global_batch_size,
        before,
        telemetry,
        training.device,
        say,
        everybody,
        setbacks.Share(rank, training.world_size, plan.strategy.micro_batch_size),
    )
    watch = guard.Guard(back)
    apart = plan.strategy.framework == "ddp" or (
        plan.strategy.framework == "deepspeed" and plan.strategy.zero_stage < 3
    )
    behind = watching.TellStragglers(
        stragglers.StragglerWatch(
            stragglers.rules(options), everybody, telemetry, say, training.device.type, work=0, apart=apart
        ),
        record,
    )
    committing = commits.CommitCheckpoints(
        record.saver, plan, resume.facts(plan) | identity, read.training, material.identity(plan, folder), back
    )
    isolation = callbacks.ProveIsolation()
    samples = total * plan.contract.global_batch_size
    train_dataset, eval_dataset = read.datasets(samples, back.batches)
    kind, own = objective.trainer(plan, model, tokenizer, pad)
    trainer = kind(
        plan=plan,
        total_steps=total,
        start=start,
        model=model,
        args=training,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        callbacks=[
            callbacks.OwnIntervals(),
            *([isolation] if read.several else []),
            randomness.OwnRandomNumbers(plan.contract.seed),
            committing,
            record,  # after what a save takes, so that this is no part of the next step
            going_on,
            watch,
            behind,
            callbacks.SaveOnRequest(stop),
            commits.DropConverted(),
            watching.WatchSections(options.watchdog),
        ],
        **own,
    )
    isolation.trainer = going_on.trainer = record.trainer = watch.trainer = trainer
    trainer.stop, trainer.watchdog = stop, options.watchdog
    committing.attach(trainer)
    behind.attach(trainer)
    trainer.remove_callback(PrinterCallback)
    if report_to:
        reporting.number(trainer)
    if options.trace is not None:
        from recipes.finetune import trace

        trace.attach(trainer, options.trace)
    trainer.train(resume_from_checkpoint=str(start.path) if start else None)
    while back.pending:
        options.watchdog.enter("going back", trainer.state.global_step)
        record.saver.wait()
        back.go_back()
        start = resume.find(plan, folder, everybody)
        assert start is not None  # it has just been looked at
        trainer.start = going_on.start = start
        record.saver.saved_step = start.step
        trainer.train_dataset = read.datasets(samples, back.batches)[0]
        guard.train_from(trainer, start.path)
    step = trainer.state.global_step
    with options.watchdog.section("last save", step):
        record.saver.close(goes_on=step < last)
    last_stall = record.saver.take_stall_seconds()
    if step < last:
        telemetry.close(last_stall)
        say(f"stopped after step {step} of {total} ({stop.reason}); the same command goes on from there", flush=True)
        return stopped_exit_code()
    if record.evaluated != step:
        with options.watchdog.section("evaluation", step):
            trainer.evaluate()
    telemetry.close(last_stall)
    if stop.stopped:
        say(f"stopped in the last evaluation ({stop.reason}); the same command goes on from there", flush=True)
        return stopped_exit_code()
    if step == total:  # else it ended by --max-steps, and the experiment is not finished
        sums.on_first(lambda: lease.require(folder), everybody, folder)
        written = result.save(trainer, plan, tokenizer, folder, options.merge)
        if rank == 0:
            losses = {"loss": record.last_loss, "held_out_loss": record.held_out_loss}
            checkpoint.mark_finished(folder, resume.facts(plan) | {"step": step} | losses | back.facts)
        say(f"finished: {', '.join(map(str, written))}{back.summary}", flush=True)
    else:
        say(program.ended_early(step, total), flush=True)
    return 0


def _silent(*_: Any, **__: Any) -> None:
    """What ranks other than 0 say."""


if __name__ == "__main__":
    program.leave(main())
