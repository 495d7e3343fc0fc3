"""The Hugging Face Trainer with the contract's schedule, and a held-out loss that weighs every token alike."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer

from recipes import ranks
from recipes.finetune.batches import nothing
from recipes.finetune.checks import is_cpu
from recipes.finetune.evaluations import interruptible, until_asked
from recipes.finetune.guard import load_again
from recipes.finetune.packing import IGNORED
from recipes.resume import Start
from recipes.schedule import learning_rate
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import reshard
from toolkit.runtime.signals import StopRequest
from toolkit.runtime.states import Parameters
from toolkit.runtime.watchdog import Watchdog

WRAPPER = "_checkpoint_wrapped_module."  # that recomputation puts into the names of FSDP's modules


class ContractTrainer(Trainer):
    """The Hugging Face Trainer on the learning rate of the contract, whatever the framework beneath."""

    stop: StopRequest | None = None  # ends an evaluation too, once there is one
    watchdog: Watchdog | None = None

    def __init__(self, plan: Plan, total_steps: int, start: Start | None = None, **keywords: Any) -> None:
        self.plan, self.total_steps, self.start = plan, total_steps, start
        self.prepared, self.micro_losses = False, list[torch.Tensor]()
        self.micro_batches = list[tuple[dict[str, Any], Any]]()  # of the step, with the tokens of the whole batch
        self.own_use_cache = getattr(keywords["model"].config, "use_cache", None)  # the Trainer switches it off
        super().__init__(**keywords)
        if not self.model_accepts_loss_kwargs:  # then the Trainer takes a mean over micro batches of their means
            raise ToolkitError(
                f"{type(self.model).__name__} cannot normalise its loss by the tokens of the whole batch: its forward"
                " takes no keyword arguments (num_items_in_batch)",
                remedy="use a model of transformers itself",
            )

    def training_step(self, *positional: Any, **keywords: Any) -> torch.Tensor:
        """One micro batch; it and its loss, on the device, are kept for telling where one is not finite."""
        self.micro_batches.append(
            (positional[1], positional[2] if len(positional) > 2 else keywords.get("num_items_in_batch"))
        )
        loss = super().training_step(*positional, **keywords)
        self.micro_losses.append(loss)
        return loss

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        """The second time in a process all is prepared, and only the states are loaded (guard.py)."""
        if not self.prepared:
            return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        load_again(self, resume_from_checkpoint)
        self.callback_handler.train_dataloader = train_dataloader
        return self.model_wrapped, train_dataloader

    @interruptible
    def evaluate(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Loss on the held-out sequences: the sum over their trained tokens, of all ranks, divided by their number.

            loss = sum of -log p(token) / trained tokens

        The Trainer's own is a mean over batches of their means. It does not depend on ranks or micro batch: a
        rank that has run out of sequences goes on with empty ones, since under ZeRO-3 and FSDP all take part in
        every forward pass.
        """
        since, model = time.perf_counter(), self.model_wrapped
        training = model.training
        model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        with torch.no_grad():
            for rows in until_asked(self, self._held_out_rows()):
                inputs = self._prepare_inputs(self.data_collator(rows))
                labels = inputs.pop("labels")[:, 1:]
                with self.compute_loss_context_manager():
                    logits = model(**inputs).logits[:, :-1]
                loss = torch.nn.functional.cross_entropy(
                    logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
                )
                sums += torch.stack([loss.double(), (labels != IGNORED).sum().double()])
        if ranks.several():
            torch.distributed.all_reduce(sums)
        model.train(training)
        loss, tokens = sums.tolist()
        metrics = {
            "eval_loss": loss / tokens,
            "eval_tokens": int(tokens),
            "eval_seconds": time.perf_counter() - since,
        }
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _held_out_rows(self) -> Any:
        """The batches of this rank: as many, and as large, on every rank."""
        rows, size = self.eval_dataset, self.args.per_device_eval_batch_size
        width = self.plan.contract.sequence_length
        for first in range(0, len(rows), size * self.args.world_size):
            mine = range(first + size * self.args.process_index, first + size * (self.args.process_index + 1))
            yield [rows[at] if at < len(rows) else nothing(width) for at in mine]

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
        else:
            super().create_optimizer(model)
        self.parameters = _parameters(self.model if model is None else model, self.optimizer)
        # DeepSpeed leaves out groups that have no parameters (of adapters none is a norm or a bias)
        self._decays = [group["weight_decay"] for group in self.optimizer.param_groups if group["params"]]
        return self.optimizer

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Repairs what loading a checkpoint of another form leaves wrong, without a word.

        DeepSpeed 0.19.8 at stage 3 (``stage3.py``) gives all weights one and the same tensor for their step, which each
        group of the optimizer then counts up, and every group the settings of the first, so that norms and biases would
        decay; SGD gets the moments of Adam. torch takes the saved settings of a group for those of this machine (the
        fused kernel, or not).
        """
        own = [_of_this_machine(group) for group in self.optimizer.param_groups] if self.optimizer else []
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or self.start is None or self.start.route.kind == reshard.PLAIN:
            return
        if not self.start.converted:
            for group, settings in zip(self.optimizer.param_groups, own, strict=True):
                group.update(settings)
            return
        if self.plan.strategy.zero_stage < 3:
            return
        optimizer = self.model_wrapped.optimizer.optimizer
        for group, decay in zip(optimizer.param_groups, self._decays, strict=True):
            group["weight_decay"] = decay
        if self.plan.contract.optimizer == "sgd":
            optimizer.state.clear()
        for state in optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()

    def _save_checkpoint(self, *positional: Any, **keywords: Any) -> None:
        """FSDP's shards alone do not say what model they are of, and with which tokens it was trained."""
        super()._save_checkpoint(*positional, **keywords)
        if self.is_fsdp_enabled and self.args.should_save:
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            self.model.config.save_pretrained(folder)
            for config in getattr(self.model, "peft_config", {}).values():
                config.save_pretrained(folder)
            self.processing_class.save_pretrained(folder)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Saved random states are those of as many ranks; others draw from seeds of their own (randomness.py)."""
        if self.start is None or self.start.facts.get("world_size", self.args.world_size) == self.args.world_size:
            super()._load_rng_state(checkpoint)


def _parameters(model: Any, optimizer: Any) -> Parameters:
    """The names of what an optimizer trains, group by group."""
    names = {id(parameter): name.replace(WRAPPER, "") for name, parameter in model.named_parameters()}
    every = {name.replace(WRAPPER, ""): each for name, each in model.named_parameters(remove_duplicate=False)}
    tied = {name: first for name, each in every.items() if (first := names[id(each)]) != name}
    return Parameters([[names[id(each)] for each in group["params"]] for group in optimizer.param_groups], tied)


def _of_this_machine(group: dict[str, Any]) -> dict[str, Any]:
    """Settings of a group that say how the optimizer computes, and not what."""
    return {name: group[name] for name in ("fused", "foreach", "capturable") if name in group}
