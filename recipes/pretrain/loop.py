"""The run itself: data, model, resume, the loop over optimizer steps, evaluation, and the model at the end."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from megatron.core import parallel_state

from recipes import continuity, option_table, program, resume, schedule, setbacks, stragglers
from recipes.pretrain import checkpoints, data, evaluation, model, result, saving
from recipes.pretrain import origin as origins
from recipes.pretrain.config import CoreConfig, learning_rate_contract
from recipes.pretrain.hugging_face import start as hugging_face
from recipes.pretrain.machine import Machine
from recipes.pretrain.reports import Reports
from recipes.pretrain.step import optimizer_step
from recipes.step_clock import StepClock
from toolkit.plan import Plan
from toolkit.recipe import warmup_steps
from toolkit.record import EvaluationRecord, StepRecord
from toolkit.runtime import checkpoint, durable, lease, skipped, sums, together
from toolkit.runtime.signals import StopRequest, stopped_exit_code
from toolkit.runtime.telemetry import Telemetry, read_evaluations, run_record
from toolkit.runtime.watchdog import IDLE


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
    text = data.load(plan, core, folder, rank)
    contract, total = learning_rate_contract(plan, core), text.steps
    option_table.require_reachable(options, total)
    last = min(total, options.max_steps) if options.max_steps > 0 else total
    weights, origin = hugging_face.initial_weights(plan, core, rank)
    built = model.build(core, machine, plan.model.vocab_size, weights)
    start = checkpoints.resume(plan, folder, built, text.sha256, options.durable)
    for note in built.notes:
        say(f"note: {note}")
    say(f"model: {plan.model.name}, {f'weights of {start.name}' if start else origin}")
    say(
        f"data: {len(text.train)} training and {len(text.held_out or ())} held-out sequences of"
        f" {text.train.sequence_length} tokens; {total} steps of {contract.global_batch_size} sequences"
    )
    for note in option_table.remarks(options, last):
        say(note)
    say(f"output: {folder}" + (f", {resume.describe(start)}" if start else ""), flush=True)
    record = run_record(plan.name, plan_text, torch.distributed.get_world_size(), machine.name)
    before = setbacks.known_steps(folder, options, start.step) if start else []
    telemetry = Telemetry(folder, record, rank)
    if options.trace is not None:
        from recipes.pretrain import trace

        text = trace.attach(built, text, plan.model.vocab_size, options.trace, start.step if start else 0)
    if rank == 0 and not (folder / "plan.json").exists():
        durable.replace(folder / "plan.json", plan_text)
    reports = Reports(plan, folder, rank)
    back = setbacks.Setbacks(
        setbacks.rules(options, warmup_steps(contract, total)),
        folder,
        contract.global_batch_size,
        before,
        telemetry,
        machine.device,
        say,
        together.group(),
        setbacks.Share(
            parallel_state.get_data_parallel_rank(),
            parallel_state.get_data_parallel_world_size(),
            core.training.micro_batch_size,
        ),
    )
    behind = stragglers.StragglerWatch(
        stragglers.rules(options),
        back.group,
        telemetry,
        say,
        machine.device,
        work=parallel_state.get_pipeline_model_parallel_rank(),
        apart=_apart(core),
    )
    examiner = origins.Examiner(built, core, text.train, machine.device, back.group)
    back.origin = examiner.where
    saves = saving.Saves(plan, folder, built, options)

    def save(step: int) -> None:
        options.watchdog.enter("save", step)
        samples = step * contract.global_batch_size
        epoch, position = divmod(back.next_sample(step), len(text.train))
        facts: dict[str, Any] = {
            "samples_seen": samples,
            "tokens": samples * contract.sequence_length,
            "learning_rate": schedule.learning_rate(max(0, step - 1), total, contract),
            "data": {"sha256": text.sha256, "epoch": epoch, "position": position, "seed": core.training.seed},
            "data_sha256": text.sha256,
        }
        saves.save(step, facts | reports.identity() | back.facts)

    def evaluate(step: int) -> float | None:
        options.watchdog.enter("evaluation", step)
        started = time.perf_counter()

        def asked() -> bool:  # before each batch: it need not end then
            options.watchdog.went_on("evaluation")
            return stop.agreed(machine.device, step)

        found = evaluation.mean_loss(built, core, text.held_out, options.eval_sequences, machine.device, asked)
        clock.evaluation += time.perf_counter() - started
        if found is not None and text.held_out is not None:
            telemetry.evaluation(
                EvaluationRecord(
                    step=step,
                    held_out_loss=_finite(found),
                    tokens=min(options.eval_sequences, len(text.held_out)) * text.held_out.sequence_length,
                    seconds=time.perf_counter() - started,
                )
            )
            say(f"held-out loss {found:.4f} after step {step}", flush=True)
            reports.log(step, {"held_out_loss": found})
        return found

    clock = StepClock(gpu=machine.device == "cuda")
    done = start.step if start else 0
    stopped, loss, step = False, float("nan"), done
    if back.rules.skips and start is None:
        checkpoints.zero_moments(built)
        save(0)  # a batch before the first checkpoint can be left out too
    if start and back.group.share(_left_out(done, last, options.eval_steps, folder))[0]:
        evaluate(done)  # a node may see an older file than another
    while step < last:
        step += 1
        options.watchdog.enter("step", step)
        clock.start()
        rate = schedule.learning_rate(step - 1, total, contract)
        model.set_learning_rate(built.optimizer, rate, contract.weight_decay)
        batch = examiner.batch = skipped.batch_of(step - 1, back.batches)
        loss, gradient_norm, back.losses = optimizer_step(
            built, core, text.train, batch, machine.device, clock, behind.own
        )
        seconds, parts = clock.stop()
        stall = saves.after_step()
        written = StepRecord(
            step=step,
            seconds=seconds,
            tokens=contract.global_batch_size * contract.sequence_length,
            loss=_finite(loss),
            learning_rate=rate,
            gradient_norm=_finite(gradient_norm),
            peak_memory_bytes=torch.cuda.max_memory_allocated() if machine.device == "cuda" else None,
            samples_seen=step * contract.global_batch_size,
            save_stall_seconds=stall,
            seconds_by_part=msgspec.structs.replace(parts, save=stall),
        )
        telemetry.step(written)
        reports.step(written)
        if step == done + 1 and (sentence := continuity.jump(before, written, plan.model.vocab_size)):
            say(f"warning: {sentence}", flush=True)
        say(f"step {step}/{total}  loss {loss:.4f}  learning rate {rate:.3g}  {written.seconds:.2f} s", flush=True)
        if back.look(step, loss, gradient_norm, lambda: model.loss_scale_can_fall(built.optimizer)):
            options.watchdog.enter("going back", step)
            saves.wait()
            back.go_back()
            again = checkpoints.resume(plan, folder, built, text.sha256)  # what it left is in durable storage too
            assert again is not None  # it has just been looked at
            step = saves.saver.saved_step = again.step
            continue
        behind.step(step, seconds)
        stopped = stop.agreed(machine.device, step)
        saved = stopped or step == last or (options.save_steps > 0 and step % options.save_steps == 0)
        if saved:
            save(step)
            stopped = stop.agreed(machine.device, step)  # a request during the save
        if options.eval_steps > 0 and step % options.eval_steps == 0 and step < last and not stopped:
            evaluate(step)
            stopped = stop.agreed(machine.device, step)  # a request during the evaluation
            if stopped and not saved:
                save(step)
        if stopped and step < last:
            break
    with options.watchdog.section("last save", step):
        saves.close(goes_on=stopped and step < last)
    telemetry.close(saves.saver.take_stall_seconds())
    if stopped and step < last:
        say(f"stopped after step {step} of {total} ({stop.reason}); the same command goes on from there", flush=True)
        return stopped_exit_code()
    held_out_loss = evaluate(step)
    if stop.stopped:
        say(f"stopped in the last evaluation ({stop.reason}); the same command goes on from there", flush=True)
        return stopped_exit_code()
    options.watchdog.enter(IDLE)
    if last == total:
        sums.on_first(lambda: lease.require(folder), back.group, folder)
        model_folder = result.save(plan, core, built, folder, rank, say)
        if rank == 0:
            losses = {"loss": loss if math.isfinite(loss) else None, "held_out_loss": held_out_loss}
            checkpoint.mark_finished(folder, resume.facts(plan) | {"step": total} | losses | back.facts)
        say(f"finished: {model_folder}{back.summary}", flush=True)
    else:
        say(program.ended_early(step, total), flush=True)
    reports.close()
    return 0


def _left_out(step: int, last: int, every: int, folder: Path) -> bool:
    """Whether the evaluation after this step was due, and was interrupted by a request to stop."""
    due = 0 < step < last and every > 0 and step % every == 0
    return due and all(found.step != step for found in read_evaluations(folder))


def _apart(core: CoreConfig) -> bool:
    """Whether the forward passes of a stage wait for no other rank."""
    degrees = ("tensor_model_parallel_size", "context_parallel_size", "expert_model_parallel_size")
    return all(core.parallel.get(name, 1) == 1 for name in degrees) and not core.ddp.get("overlap_param_gather")


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None  # JSON has no NaN


def _silent(*_: Any, **__: Any) -> None:
    """What ranks other than 0 say."""
