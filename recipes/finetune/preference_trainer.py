"""Direct Preference Optimization (arXiv:2305.18290): trl's DPOTrainer on the contract's order, schedule and batch.

    loss = mean over pairs of -log sigmoid(beta * (log p(c)/q(c) - log p(r)/q(r)))       c chosen, r rejected

``q`` is the reference, the model that training starts from, so the first loss is ln 2. The mean is over the pairs of a
step, of all ranks and micro batches: every one has as many, so means of means are the mean. Written for trl 1.16.0.

Left to trl: the losses, the reference's forward pass, log probabilities without whole logits. Not left to it: reading
and ordering the data (its own depends on a cache), evaluation (a mean over batches of their means), and its telemetry
and model cards, which are switched off: a run reports to nobody unless told to.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl import DPOConfig, DPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

from recipes import ranks
from recipes.finetune.evaluations import interruptible, until_asked
from recipes.finetune.trainer import ContractTrainer
from toolkit.plan import Plan


def training_arguments(plan: Plan, keywords: dict[str, Any]) -> DPOConfig:
    """The arguments of any run with those of the loss; recomputation as planned, which trl would switch on."""
    contract = plan.contract
    keywords.setdefault("activation_checkpointing", False)
    return DPOConfig(
        **keywords,
        gradient_checkpointing=None,  # the old name, whose default trl changes
        beta=contract.dpo_beta,
        loss_type=[contract.dpo_loss],
        max_length=contract.sequence_length,
    )


def collator(plan: Plan, pad: int) -> DataCollatorForPreference:
    """Pairs as one batch, chosen answers first; as wide as planned, so that every batch costs the same."""
    width = plan.contract.sequence_length
    return DataCollatorForPreference(pad_token_id=pad, max_length=width, pad_to_multiple_of=width)


class PreferenceTrainer(ContractTrainer, DPOTrainer):
    """trl's trainer, with what every run of this program shares before it in the order of resolution."""

    def __init__(self, processing_class: Any, **keywords: Any) -> None:
        tokenizer = _of_the_library(processing_class)
        without_padding = tokenizer.pad_token is None
        super().__init__(processing_class=tokenizer, **keywords)
        if without_padding:  # trl makes it the end token
            tokenizer.pad_token = None

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        """They are tokens already (preferences.py)."""
        return dataset

    @interruptible
    def evaluate(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Mean loss, margin and accuracy of the held-out pairs, one at a time.

        It depends neither on ranks nor on the micro batch. A rank that has run out of pairs goes on with its last one
        and weight 0, since under ZeRO-3 and FSDP all take part in every forward pass.
        """
        since, model, rows = time.perf_counter(), self.model_wrapped, self.eval_dataset
        training = model.training
        model.eval()
        sums = torch.zeros(5, dtype=torch.float64, device=self.args.device)
        for first in until_asked(self, range(0, len(rows), self.args.world_size)):
            at = first + self.args.process_index
            inputs = self._prepare_inputs(self.data_collator([rows[min(at, len(rows) - 1)]]))
            with torch.no_grad(), self.compute_loss_context_manager():
                loss, margin = self._loss_and_margin(model, inputs)
            tokens = inputs["completion_mask"].sum()
            found = [
                loss.double(),
                margin.double(),
                (margin > 0).double(),
                tokens.double(),
                torch.ones_like(loss).double(),
            ]
            sums += torch.stack(found) * (at < len(rows))
        if ranks.several():
            torch.distributed.all_reduce(sums)
        model.train(training)
        loss_sum, margin_sum, right, tokens_sum, pairs = sums.tolist()
        metrics = {
            "eval_loss": loss_sum / pairs,
            "eval_reward_margin": margin_sum / pairs,
            "eval_reward_accuracy": right / pairs,
            "eval_tokens": int(tokens_sum),
            "eval_seconds": time.perf_counter() - since,
        }
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _loss_and_margin(self, model: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Of one pair; trl keeps margins as means over ranks, so this rank's is taken on its way there."""
        rewards: list[torch.Tensor] = []
        gather = self.accelerator.gather

        def noted(values: torch.Tensor) -> torch.Tensor:
            if values.dim() == 1:  # of pairs; what counts tokens has none
                rewards.append(values)
            return values

        self.accelerator.gather = noted
        try:
            loss = self.compute_loss(model, inputs)
        finally:
            self.accelerator.gather = gather
            self._metrics["eval"].clear()
        chosen, rejected = rewards[:2]  # the order in which trl gathers them
        return loss.detach(), (chosen - rejected).sum()

    def _send_telemetry(self) -> None:
        """Nothing leaves the machine."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """No page about the run in its output folder."""


def _of_the_library(tokenizer: Any) -> PreTrainedTokenizerBase:
    """The tokenizer itself, or the one that it is saved as."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return tokenizer
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return AutoTokenizer.from_pretrained(folder)  # type: ignore[no-any-return]
