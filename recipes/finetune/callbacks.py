"""The Trainer with the contract's schedule, and what happens at the end of a step and of a save."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recipes.finetune.checks import is_cpu
from recipes.ranks import barrier
from recipes.schedule import learning_rate
from toolkit.plan import Plan
from toolkit.record import StepRecord
from toolkit.runtime import checkpoint
from toolkit.runtime.signals import StopRequest
from toolkit.runtime.telemetry import Telemetry


class ContractTrainer(Trainer):
    """The Hugging Face Trainer on the learning rate of the contract, whatever the framework beneath."""

    def __init__(self, plan: Plan, total_steps: int, **keywords: Any) -> None:
        self.plan, self.total_steps = plan, total_steps
        super().__init__(**keywords)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """``num_training_steps`` is where this run ends; the schedule is that of the whole experiment."""
        if self.lr_scheduler is None:
            contract, total, peak = self.plan.contract, self.total_steps, self.plan.contract.learning_rate
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer, lambda step: learning_rate(step, total, contract) / peak if peak else 0.0
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """DeepSpeed's CPU Adam where the optimizer is offloaded from a GPU (torch's would be many times slower)."""
        strategy, contract = self.plan.strategy, self.plan.contract
        offloaded = strategy.framework == "deepspeed" and strategy.offload and contract.optimizer == "adamw"
        if self.optimizer is None and offloaded and not is_cpu(self.plan):
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            groups = super().create_optimizer(model).param_groups
            self.optimizer = DeepSpeedCPUAdam(
                [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in groups],
                lr=contract.learning_rate,
                betas=(contract.adam_beta1, contract.adam_beta2),
                eps=contract.adam_epsilon,
                adamw_mode=True,
            )
            return self.optimizer
        return super().create_optimizer(model)


class RecordSteps(TrainerCallback):
    """Writes a StepRecord and prints a line per step. Time runs from log to log, without saves."""

    def __init__(self, plan: Plan, telemetry: Telemetry, total_steps: int) -> None:
        self.plan, self.telemetry, self.total_steps = plan, telemetry, total_steps
        self.last_loss: float | None = None
        self._since = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The clock starts."""
        self._since = time.perf_counter()

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
        now, contract = time.perf_counter(), self.plan.contract
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() and not args.use_cpu else None
        record = StepRecord(
            step=state.global_step,
            seconds=now - self._since,
            tokens=contract.global_batch_size * contract.sequence_length,
            loss=logs["loss"],
            learning_rate=logs["learning_rate"],
            gradient_norm=logs.get("grad_norm"),
            peak_memory_bytes=peak,
            samples_seen=state.global_step * contract.global_batch_size,
        )
        self.last_loss = record.loss
        self.telemetry.step(record)
        every = 1 if self.total_steps <= 100 else 10
        if args.process_index == 0 and (record.step % every == 0 or record.step in (1, self.total_steps)):
            print(
                f"step {record.step}/{self.total_steps}  loss {record.loss:.4f}"
                f"  learning rate {record.learning_rate:.3g}  {record.seconds:.2f} s",
                flush=True,
            )
        self._since = time.perf_counter()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A save is over; it is no part of the next step."""
        self._since = time.perf_counter()


class SaveOnRequest(TrainerCallback):
    """All ranks save and stop at the same step once any of them has been asked to."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Agree, then leave the saving and the end of the loop to the Trainer."""
        if self.stop.agreed(args.device):
            control.should_save = True
            control.should_training_stop = True


class CommitCheckpoints(TrainerCallback):
    """Marks a checkpoint as whole once every rank has written its part, and then drops older ones."""

    def __init__(self, facts: dict[str, Any], keep: int) -> None:
        self.facts, self.keep = facts, keep

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Nobody goes on before the marker is on the disk."""
        barrier()
        if args.process_index == 0:
            directory = Path(args.output_dir)
            checkpoint.commit(directory / f"checkpoint-{state.global_step}", self.facts | {"step": state.global_step})
            checkpoint.prune(directory, self.keep)
        barrier()
