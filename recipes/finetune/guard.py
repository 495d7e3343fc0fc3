"""Looks at each step's loss and gradient norm, and goes back to a checkpoint in the Trainer that runs.

The Trainer can be told to train a second time, but it would make a new engine, wrap the model again or lose what it
has prepared, depending on the framework. Here the second time takes all that as it is and loads the states only.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recipes.finetune.origin import Examiner
from recipes.setbacks import Setbacks


class Guard(TrainerCallback):
    """Among the last of the callbacks: the step has been written down, and a save may be due that must not be made."""

    def __init__(self, setbacks: Setbacks) -> None:
        self.setbacks, self.examiner = setbacks, Examiner(setbacks.group)
        setbacks.origin = self.examiner.where
        self.trainer: Any = None  # set once there is one

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A run that may go back has a checkpoint from its beginning on."""
        trainer = self.trainer
        self.examiner.attach(trainer)
        if self.setbacks.rules.skips and trainer.start is None:
            if trainer.is_fsdp_enabled:
                _begin_states(trainer.optimizer.optimizer)
            trainer._save_checkpoint(trainer.model_wrapped, trial=None)
            trainer.control = trainer.callback_handler.on_save(args, state, control)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The losses of its micro batches follow."""
        self.setbacks.losses = self.trainer.micro_losses = []
        self.trainer.micro_batches = []

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Where the run is to go back, nothing is evaluated or saved before it does."""
        if logs is None or "loss" not in logs:
            return
        can_fall = functools.partial(loss_scale_can_fall, self.trainer)
        if self.setbacks.look(state.global_step, logs["loss"], logs.get("grad_norm"), can_fall):
            control.should_training_stop = True
            control.should_evaluate = control.should_save = False


def _begin_states(optimizer: Any) -> None:
    """Make the states of an optimizer that has made no step: torch's own way of saving them counts one."""
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    _init_optim_state(optimizer)  # with gradients and a learning rate of 0
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].zero_()


def loss_scale_can_fall(trainer: Any) -> bool:
    """Whether what overflows now is left out, and the loss scale lowered (fp16); read only where asked for."""
    if not trainer.args.fp16:
        return False
    if getattr(trainer, "deepspeed", None) is not None:
        scaler = getattr(trainer.deepspeed.optimizer, "loss_scaler", None)
        return bool(getattr(scaler, "dynamic", False)) and scaler.cur_scale > getattr(scaler, "min_scale", 1.0)
    scaler = trainer.accelerator.scaler
    return scaler is not None and scaler.get_scale() > 1.0


def train_from(trainer: Any, path: Path) -> None:
    """Train once more, from this checkpoint on, with everything that the Trainer has prepared."""
    accelerator, free = trainer.accelerator, trainer.accelerator.free_memory
    accelerator.free_memory = lambda *given: given  # it would destroy the engine
    accelerator.gradient_state.dataloader_references = [None]  # of the loader that was left in the middle
    trainer.prepared = True
    trainer.args.eval_on_start = False
    try:
        trainer.train(resume_from_checkpoint=str(path))
    finally:
        accelerator.free_memory, trainer.prepared = free, False


def load_again(trainer: Any, path: str) -> None:
    """Weights, optimizer, schedule and loss scale of a checkpoint into what is there; DDP's weights are by then."""
    if trainer.is_deepspeed_enabled:
        from transformers.integrations.deepspeed import deepspeed_load_checkpoint

        trainer.deepspeed._config.load_universal_checkpoint = bool(trainer.start and trainer.start.converted)
        whole = trainer.plan.contract.method == "full"
        deepspeed_load_checkpoint(trainer.model_wrapped, path, load_module_strict=whole)
    elif trainer.is_fsdp_enabled:
        trainer._load_from_checkpoint(path, trainer.model_wrapped)
    trainer._load_optimizer_and_scheduler(path)
    trainer._load_scaler(path)
