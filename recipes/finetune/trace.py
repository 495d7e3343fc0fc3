"""``--trace`` of the fine-tuning program: hooks on a Trainer that is otherwise the one of any run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from recipes import trace
from recipes.finetune.packing import IGNORED
from recipes.trace import Named, Trace

WRAPPERS = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def attach(trainer: Any, folder: Path) -> None:
    """Write a trace of the steps that this Trainer will take."""
    trainer.add_callback(_Write(trainer, folder))


class _Write(TrainerCallback):
    """The start of training, and the end of each step."""

    def __init__(self, trainer: Any, folder: Path) -> None:
        self.trainer, self.folder = trainer, folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The model is wrapped and the optimizer made."""
        trainer, model = self.trainer, self.trainer.model
        facts = {
            "place": {"dp": args.process_index},
            "draws": {"outside": trace.next_draws()},
            "batch_norms": trace.batch_norms(model),
            "dropouts": trace.dropouts(model),
            "tied": [sorted(names) for names in _shared(model)],
            "settings": trace.settings(model.config.to_dict(), model),
        }
        self.trace = Trace(self.folder, args.process_index, facts)
        self._ended(state.global_step)
        trace.without_dropout(model)
        _record_batches(trainer, self.trace)
        if getattr(trainer, "deepspeed", None) is not None:
            self._before(trainer.deepspeed, "step")
        else:
            self._before(trainer.accelerator, "clip_grad_norm_")
            self._before(trainer.optimizer, "step")  # where nothing is clipped

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The weights have moved."""
        self._ended(state.global_step)

    def _ended(self, step: int) -> None:
        model = self.trainer.model
        buffers = [(_plain(name), tensor) for name, tensor in trace.buffers(model)]
        self.trace.step(step, self._weights(), buffers, self._frozen())

    def _before(self, owner: Any, name: str) -> None:
        """Note the gradients before a method of this object runs, the first time in a step."""
        method = getattr(owner, name)

        def noted(*positional: Any, **keywords: Any) -> Any:
            if not self.trace.has_gradients and self._complete():
                self.trace.gradients(self._gradients())
            return method(*positional, **keywords)

        setattr(owner, name, noted)

    def _complete(self) -> bool:
        """DeepSpeed is asked to step after every micro-batch and does so at the end of an accumulation only."""
        engine = getattr(self.trainer, "deepspeed", None)
        return engine is None or engine.is_gradient_accumulation_boundary()

    def _gradients(self) -> Iterator[Named]:
        engine = getattr(self.trainer, "deepspeed", None)
        for name, parameter, first in self._parameters():
            if engine is not None:
                from deepspeed.utils import safe_get_full_grad

                gradient = safe_get_full_grad(parameter)
            else:
                gradient = parameter.grad
            if gradient is not None:
                yield name, _whole(gradient), first

    def _weights(self) -> Iterator[Named]:
        for name, parameter, first in self._parameters():
            with _gathered(parameter):
                yield name, _whole(parameter), first

    def _parameters(self) -> Iterator[tuple[str, Any, bool]]:
        first = self.trainer.args.process_index == 0
        for name, parameter in self.trainer.model.named_parameters():
            if parameter.requires_grad:
                yield _plain(name), parameter, first

    def _frozen(self) -> Iterator[tuple[str, Any]]:
        for name, parameter in self.trainer.model.named_parameters():
            if not parameter.requires_grad:
                with _gathered(parameter):
                    yield _plain(name), _whole(parameter)


def _plain(name: str) -> str:
    """The name in the whole model, whatever wraps it."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _record_batches(trainer: Any, written: Trace) -> None:
    """The sequences as the model gets them, and the losses of their tokens, whatever the program makes of them."""
    training_step = trainer.training_step

    def step(model: Any, inputs: dict[str, Any], *more: Any, **keywords: Any) -> Any:
        pairs = "completion_mask" in inputs  # chosen answers, then rejected ones
        labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, IGNORED) if pairs else inputs["labels"]
        beside = [inputs[name] for name in ("position_ids", "attention_mask") if name in inputs and not pairs]
        for row in zip(*(each.cpu().numpy() for each in (inputs["input_ids"], labels, *beside)), strict=True):
            written.samples.append(".".join(map(trace.digest, row)))
        loss = training_step(model, inputs, *more, **keywords)
        if pairs:
            count = len(labels) // 2
            written.micro.append((float(loss) * trainer.current_gradient_accumulation_steps * count, count))
        return loss

    def losses(module: Any, _positional: Any, keywords: dict[str, Any], output: Any) -> None:
        labels, logits = keywords.get("labels"), getattr(output, "logits", None)
        if labels is None or logits is None or not torch.is_grad_enabled() or logits.shape[:-1] != labels.shape:
            return
        written.evaluating |= not module.training
        flat, targets = logits[:, :-1].detach().float().flatten(0, 1), labels[:, 1:].flatten()
        total = torch.nn.functional.cross_entropy(flat.double(), targets, ignore_index=IGNORED, reduction="sum")
        written.micro.append((float(total), int((targets != IGNORED).sum())))

    trainer.training_step = step
    trainer.model.register_forward_hook(losses, with_kwargs=True)


def _shared(model: Any) -> list[set[str]]:
    """Names of parameters that are one tensor."""
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return [each for each in names.values() if len(each) > 1]


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _gathered(parameter: Any) -> Any:
    if not hasattr(parameter, "ds_id"):
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter])
