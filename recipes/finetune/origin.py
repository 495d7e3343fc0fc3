"""Where a value that is not finite comes from, in the Trainer: the weights are kept, the batch is run again.

DeepSpeed (0.19.8, ZeRO 1 to 3) reads the norm of the gradients on the host before its update, and leaves the update of
one that is not finite out itself, but for bf16 at stages 1 and 2; there it is left out here. So it is with torch's
optimizers (DDP, FSDP): there the host reads before the update what the Trainer reads after it in every step.

A loss that is finite with gradients that are not: the backward pass is run again too, down to the first activation that
needs a gradient and no further, so that no weight gets one. Not under FSDP.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

import torch

from recipes.origin import FINITE, OF_THE_LOSS, Chunk, Seen, Watcher, agreed, bad
from toolkit.runtime.together import Group

WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "module.", "base_model.model.")


class Examiner:
    """One for a trainer; ``attach`` it before training, and all ranks call :meth:`where` together."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.trainer: Any = None
        self._ruined = False

    def attach(self, trainer: Any) -> None:
        """Called when the trainer has made its optimizer; twice is once."""
        if self.trainer is not None:
            return
        self.trainer = trainer
        engine = getattr(trainer, "deepspeed", None)
        if engine is None:
            self._attend(trainer, "_get_grad_norm", trainer.optimizer, "step")
        elif hasattr(engine.optimizer, "scaled_global_norm"):
            self._attend(engine.optimizer, "scaled_global_norm", engine.optimizer, "_optimizer_step")

    def _attend(self, owner: Any, norm: str, optimizer: Any, step: str) -> None:
        measure, update = getattr(owner, norm), getattr(optimizer, step)

        def measured(*given: Any, **named: Any) -> Any:
            found = measure(*given, **named)
            self._ruined = found is not None and not _sound(found)
            return found

        def updated(*given: Any, **named: Any) -> Any:
            return None if self._ruined else update(*given, **named)

        updated._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # torch warns of a step that it has not wrapped
        setattr(owner, norm, measured)
        setattr(optimizer, step, updated)

    def where(self) -> str:
        """Run the micro batches of the step once more, without an update; the origin in words."""
        trainer = self.trainer
        wrapped, batches = trainer.model_wrapped, trainer.micro_batches
        watcher = Watcher([Chunk(0, wrapped, plain_name)])
        loss_is_bad = False
        training = wrapped.training
        wrapped.eval()
        with torch.no_grad(), watcher.watching():
            for inputs, count in batches:
                loss_is_bad |= bad(self._loss(wrapped, inputs, count))
        wrapped.train(training)
        found = agreed(watcher.first, self.group)
        if found:
            return found
        if any(self.group.share(loss_is_bad)):
            return OF_THE_LOSS
        gradient = "" if trainer.is_fsdp_enabled else self._backward(batches)
        return f"{FINITE}; first {gradient} is not" if gradient else FINITE

    def _loss(self, model: Any, inputs: dict[str, Any], count: Any) -> torch.Tensor:
        trainer = self.trainer
        with trainer.compute_loss_context_manager():
            prepared = trainer._prepare_inputs(dict(inputs))
            return trainer.compute_loss(model, prepared, num_items_in_batch=count)  # type: ignore[no-any-return]

    def _backward(self, batches: list[tuple[dict[str, Any], Any]]) -> str:
        """The module whose output has the first gradient that is not finite; they flow from the last to the first."""
        model = getattr(self.trainer.model_wrapped, "module", self.trainer.model_wrapped)
        seen: list[Seen] = []
        for inputs, count in batches:
            with _gradients(model) as activations:
                loss = self._loss(model, inputs, count)
            if not activations or not loss.requires_grad:
                break
            order: list[Seen] = []
            for number, (name, value) in enumerate(activations):
                what = Seen(chunk=0, number=-number, text=f"the gradient of the output of {name}")
                value.register_hook(functools.partial(_note, order, what))
            torch.autograd.grad(loss, activations[0][1], allow_unused=True)
            seen += order[:1]
        return agreed(min(seen, key=lambda each: each.key) if seen else None, self.group)


@contextlib.contextmanager
def _gradients(model: Any) -> Any:
    """Inside, the outputs of modules that need gradients are collected, in forward order."""
    found: list[tuple[str, torch.Tensor]] = []
    handles = []
    for name, module in model.named_modules():

        def keep(_: Any, given: Any, output: Any, name: str = plain_name(name)) -> None:
            value = output[0] if isinstance(output, tuple) and output else output
            if isinstance(value, torch.Tensor) and value.requires_grad:
                found.append((name, value))

        if name:
            handles.append(module.register_forward_hook(keep, prepend=True))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _note(order: list[Seen], what: Seen, gradient: torch.Tensor) -> None:
    if bad(gradient):
        order.append(what)


def plain_name(name: str) -> str:
    """Without what frameworks wrap around."""
    for each in WRAPPERS:
        name = name.replace(each, "") if each.startswith("_") else name.removeprefix(each)
    return name


def _sound(norm: Any) -> bool:
    """DeepSpeed writes -1 for what is not finite."""
    value = float(norm)
    return math.isfinite(value) and value >= 0.0
