"""What happens at the start, at the end of a step, of an evaluation and of a save."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recipes.finetune.batches import prove_isolation
from recipes.step_clock import FORWARD_BACKWARD, OPTIMIZER, OTHER, StepClock
from toolkit.plan import Plan
from toolkit.recipe import sequences_per_step
from toolkit.record import EvaluationRecord, StepRecord
from toolkit.runtime.saver import Saver
from toolkit.runtime.signals import StopRequest
from toolkit.runtime.telemetry import Telemetry


class RecordSteps(TrainerCallback):
    """Writes a StepRecord and shows each step: a bar on a terminal, lines elsewhere. Time is without saves."""

    trainer: Any = None  # set once there is one

    def __init__(self, plan: Plan, telemetry: Telemetry, total_steps: int, screen: TextIO = sys.stderr) -> None:
        self.plan, self.telemetry, self.total_steps = plan, telemetry, total_steps
        self.screen = screen
        self.last_loss: float | None = None
        self.held_out_loss: float | None = None
        self.evaluated = -1  # after which step
        self.saver: Saver | None = None  # set once there is one
        self.clock, self.seconds = StepClock(), 0.0  # of the last step
        self._bar: Any = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The clock starts."""
        if args.process_index == 0 and self.screen.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=args.max_steps, initial=state.global_step, unit="step", file=self.screen)
        self.clock = StepClock(gpu=not args.use_cpu and torch.cuda.is_available())
        self._attach()
        self.clock.start()

    def _attach(self) -> None:
        """The update begins where gradients are clipped, or measured only; DeepSpeed's engine does both."""
        if self.trainer is None:
            return
        engine = getattr(self.trainer, "deepspeed", None)
        owner, name = (self.trainer.accelerator, "clip_grad_norm_") if engine is None else (engine, "step")
        method = getattr(owner, name)
        if getattr(method, "timed_by", None) is self:  # training begins a second time
            return

        def timed(*positional: Any, **keywords: Any) -> Any:
            if engine is None or engine.is_gradient_accumulation_boundary():
                self.clock.enter(OPTIMIZER)
            return method(*positional, **keywords)

        timed.timed_by = self  # type: ignore[attr-defined]
        setattr(owner, name, timed)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """All micro batches of the step have been read."""
        self.clock.enter(FORWARD_BACKWARD)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The weights have moved, or will, once the device gets there."""
        self.clock.enter(OTHER)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The bar stays where it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """The Trainer has just read the loss from the device, so the step's work is done at this moment."""
        if logs is None or "loss" not in logs:
            return
        contract = self.plan.contract
        stall = self.saver.take_stall_seconds() if self.saver is not None else 0.0
        seconds, parts = self.clock.stop(stall)
        self.seconds = seconds
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() and not args.use_cpu else None
        record = StepRecord(
            step=state.global_step,
            seconds=seconds,
            seconds_by_part=parts,
            tokens=sequences_per_step(contract) * contract.sequence_length,
            loss=logs["loss"],
            learning_rate=logs["learning_rate"],
            gradient_norm=logs.get("grad_norm"),
            peak_memory_bytes=peak,
            samples_seen=state.global_step * contract.global_batch_size,
            reward_margin=logs.get("rewards/margins"),
            reward_accuracy=logs.get("rewards/accuracies"),
            save_stall_seconds=stall,
        )
        self.last_loss = record.loss
        self.telemetry.step(record)
        every = 1 if self.total_steps <= 100 else 10
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {record.loss:.4f}", refresh=False)
            self._bar.update(record.step - self._bar.n)
        elif args.process_index == 0 and (record.step % every == 0 or record.step in (1, self.total_steps)):
            print(
                f"step {record.step}/{self.total_steps}  loss {record.loss:.4f}"
                f"  learning rate {record.learning_rate:.3g}  {record.seconds:.2f} s",
                flush=True,
            )
        self.clock.start()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """The held-out loss, on the disk and shown; the evaluation is no part of the next step."""
        if metrics is not None:
            loss, tokens = metrics["eval_loss"], metrics["eval_tokens"]
            self.held_out_loss, self.evaluated = loss, state.global_step
            self.clock.evaluation += metrics["eval_seconds"]
            self.telemetry.evaluation(
                EvaluationRecord(
                    step=state.global_step,
                    held_out_loss=loss,
                    tokens=tokens,
                    seconds=metrics["eval_seconds"],
                    reward_margin=metrics.get("eval_reward_margin"),
                    reward_accuracy=metrics.get("eval_reward_accuracy"),
                )
            )
            if args.process_index == 0:
                line = f"held-out loss {loss:.4f} after step {state.global_step} ({tokens:,} tokens)"
                if self._bar is not None:
                    self._bar.write(line, file=sys.stdout)
                else:
                    print(line, flush=True)
        self.clock.start()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A save is over; it is no part of the next step."""
        self.clock.start()


class ProveIsolation(TrainerCallback):
    """Before the first step of a run with packed documents: the model itself shows that they do not see one another."""

    def __init__(self) -> None:
        self.trainer: Any = None  # set once there is one

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Under ZeRO-3 and FSDP only the wrapped model can be run, and only by all ranks together."""
        plan, wrapped = self.trainer.plan, self.trainer.model_wrapped
        prove_isolation(
            wrapped, self.trainer.data_collator, plan.model.vocab_size, plan.contract.sequence_length, args.device
        )


class OwnIntervals(TrainerCallback):
    """A run that goes on saves and evaluates as often as this start was told, not as the one before it was.

    The Trainer (transformers 5.24) takes ``save_steps`` and ``eval_steps`` from ``trainer_state.json`` of the
    checkpoint, and only warns that they differ.
    """

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The checkpoint's state has been read by now, and no step been made."""
        state.compute_steps(args, state.max_steps)


class SaveOnRequest(TrainerCallback):
    """All ranks save and stop at the same step once any of them has been asked to."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Agree, then leave the saving and the end of the loop to the Trainer."""
        if self.stop.agreed(args.device, state.global_step):
            control.should_save = True
            control.should_training_stop = True

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A request during an evaluation is not left to the end of another step; the last step ends by itself."""
        if 0 < state.global_step < state.max_steps and self.stop.agreed(args.device, state.global_step):
            control.should_save = True
            control.should_training_stop = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Nor is one during a save, and what is saved need not be saved again."""
        if 0 < state.global_step < state.max_steps and self.stop.agreed(args.device, state.global_step):
            control.should_training_stop = True
