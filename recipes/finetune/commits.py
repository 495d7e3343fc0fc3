"""The Trainer's saves under the commit protocol (:mod:`toolkit.runtime.saver`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recipes import resume
from recipes.setbacks import Setbacks
from toolkit.plan import Plan
from toolkit.recipe import sequences_per_step
from toolkit.runtime.saver import Saver
from toolkit.runtime.states import PARAMETERS


class CommitCheckpoints(TrainerCallback):
    """Puts the Trainer's saves under the commit protocol: a fresh folder before, the manifest after.

    ``epoch_samples`` is the number of sequences in an epoch, ``data`` tells this data from others.
    """

    def __init__(
        self, saver: Saver, plan: Plan, facts: dict[str, Any], epoch_samples: int, data: str, setbacks: Setbacks
    ) -> None:
        self.setbacks = setbacks
        self.saver, self.plan, self.facts, self.epoch_samples, self.data = saver, plan, facts, epoch_samples, data
        self._written: Path | None = None
        self._trainer: Any = None

    def attach(self, trainer: Any) -> None:
        """From now on this trainer writes into fresh folders; twice at one step is once."""
        self._trainer, write = trainer, trainer._save_checkpoint

        def save(*positional: Any, **keywords: Any) -> None:
            step = trainer.state.global_step
            if step == self.saver.saved_step:
                return
            with self.saver.stalling():
                self._written = self.saver.begin(step)
                write(*positional, **keywords)

        trainer._save_checkpoint = save

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Every rank has returned from writing, or will: the commit waits for all."""
        if self._written is None:
            return
        written, self._written = self._written, None
        if args.process_index == 0:
            (written / PARAMETERS).write_bytes(msgspec.json.encode(self._trainer.parameters))
        contract = self.plan.contract
        samples = state.global_step * contract.global_batch_size
        epoch, position = divmod(self.setbacks.next_sample(state.global_step), self.epoch_samples)
        rates = [entry["learning_rate"] for entry in state.log_history if "learning_rate" in entry]
        moment: dict[str, Any] = {
            "step": state.global_step,
            "samples_seen": samples,
            "tokens": state.global_step * sequences_per_step(contract) * contract.sequence_length,
            "learning_rate": rates[-1] if rates else None,
            "data": {"sha256": self.data, "epoch": epoch, "position": position, "seed": contract.seed},
        }
        self.saver.commit(written, self.facts | moment | self.setbacks.facts)


class DropConverted(TrainerCallback):
    """The universal form that a run went on from is of no use once there is a newer checkpoint of its own layout."""

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Runs after the commit of that checkpoint."""
        if args.process_index == 0:
            resume.drop_converted(Path(args.output_dir))
