"""A resumed run is checked before its first step, and its first loss after it (:mod:`recipes.continuity`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recipes import continuity
from recipes.resume import Start
from toolkit.errors import Problems
from toolkit.plan import Plan
from toolkit.record import StepRecord
from toolkit.schedule import learning_rate

WITHOUT_STEPS = ("sgd",)  # optimizers that count none


class GoOn(TrainerCallback):
    """``before`` are the steps of the run's telemetry when it starts; ``start`` None is a run that begins."""

    def __init__(self, plan: Plan, total_steps: int, start: Start | None, before: list[StepRecord], say: Any) -> None:
        self.plan, self.total_steps, self.start, self.before, self.say = plan, total_steps, start, before, say
        self.trainer: Any = None  # set once there is one
        self._watched = start is None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Everything has been loaded by now; raises ToolkitError on every rank where something has not."""
        if self.start is None:
            take_back_first_step(self.trainer.model_wrapped)
            return
        contract = self.plan.contract
        if self.plan.strategy.framework == "ddp" and contract.method == "full":
            require_names(self.start.path, self.trainer.model)
        counted: list[int | None] = list(continuity.optimizer_steps(self.trainer.optimizer))
        if contract.optimizer not in WITHOUT_STEPS and not counted and self.plan.strategy.framework != "deepspeed":
            counted = [0]  # its states come with the first step: there are none, so none have been restored
        if contract.precision == "fp16":  # a step that overflows is skipped by optimizer and schedule
            counted = []
        stands = None if contract.precision == "fp16" else int(self.trainer.lr_scheduler.last_epoch)
        continuity.require_restored(self.start.step, counted, stands)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """The learning rate is the contract's at every step; the first loss goes on from the last ones."""
        if logs is None or "loss" not in logs:
            return
        wanted = learning_rate(state.global_step - 1, self.total_steps, self.plan.contract)
        if self.plan.contract.precision != "fp16":
            continuity.require_rate(state.global_step, float(logs["learning_rate"]), wanted)
        if not self._watched:
            self._watched = True
            first = StepRecord(step=state.global_step, seconds=0.0, tokens=0, loss=logs["loss"], learning_rate=wanted)
            sentence = continuity.jump(self.before, first, self.plan.model.vocab_size)
            if sentence:
                self.say(f"warning: {sentence}", flush=True)


def take_back_first_step(engine: Any) -> None:
    """Let an optimizer begin at step 0 that DeepSpeed 0.19.8 has begun at 1: at stage 0 in 16 bits.

    It makes the states by a step with gradients of zero (``fp16/unfused_optimizer.py``), which decays the master
    weights and counts: Adam's bias correction is then always that of the step after, with betas of 0.9 and 0.95 a
    first update of 0.74 of its size. Nothing for other engines.
    """
    wrapper = getattr(engine, "optimizer", None)
    if not hasattr(wrapper, "initialize_optimizer_states") or not hasattr(wrapper, "fp32_groups"):
        return
    wrapper.refresh_fp32_params()
    for state in wrapper.optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].zero_()


def require_names(checkpoint: Path, model: Any) -> None:
    """Raise ToolkitError unless a checkpoint's weights are the model's: the Trainer loads what fits and goes on."""
    from safetensors import safe_open

    held: set[str] = set()
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            held |= set(file.keys())
    tied = set(getattr(model, "_tied_weights_keys", None) or ()) if model.config.tie_word_embeddings else set()
    wanted = set(model.state_dict())
    with Problems() as problems:
        for name in sorted(wanted - held - tied):
            problems.add(f"{checkpoint} lacks {name}", "it would keep its first, untrained value: choose another one")
        for name in sorted(held - wanted):
            problems.add(f"{checkpoint} holds {name}, which the model does not have", "it is of another model")
