"""Where a value that is not finite comes from, in megatron-core's loop: the weights are kept, the batch is run again.

megatron-core (0.16.1) has the norm of the gradients on the host before it clips them, so that looking at it costs
nothing. Where it is not finite, gradients are looked at before they are clipped, and the update is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import unwrap_model

from recipes.origin import FINITE, OF_THE_LOSS, Chunk, Seen, Watcher, agreed, bad
from recipes.pretrain import data, forward
from recipes.pretrain.config import CoreConfig
from recipes.pretrain.model import Built
from toolkit.runtime.together import Group


class Examiner:
    """One for a start of a rank, made before the first step; all ranks call :meth:`where` together."""

    def __init__(self, built: Built, core: CoreConfig, sequences: data.Sequences, device: str, group: Group) -> None:
        self.built, self.core, self.sequences, self.device, self.group = built, core, sequences, device, group
        self.batch = 0  # which the step under way reads
        self.gradient: Seen | None = None
        self._ruined = False
        stages = parallel_state.get_pipeline_model_parallel_world_size()
        stage = parallel_state.get_pipeline_model_parallel_rank()
        self.chunks = [
            Chunk(number * stages + stage, module, global_name(module))
            for number, module in enumerate(unwrap_model(built.chunks))
        ]
        if hasattr(built.optimizer, "chained_optimizers"):  # what get_megatron_optimizer makes
            self._attend(built.optimizer)

    def _attend(self, optimizer: Any) -> None:
        """The norm on its way to the clipping, and the update after it."""
        measure, update = optimizer.get_grad_norm, optimizer.step_with_ready_grads

        def measured() -> Any:
            norm = measure()
            self._ruined = not math.isfinite(float(norm))
            if self._ruined:
                self.gradient = self._last_bad_gradient()
            return norm

        def updated() -> Any:
            ruined, self._ruined = self._ruined, False
            return True if ruined else update()

        optimizer.get_grad_norm, optimizer.step_with_ready_grads = measured, updated

    def _last_bad_gradient(self) -> Seen | None:
        """Gradients flow backwards: what is bad in a module is bad in all before it, so it began in the last one."""
        for place, module, rename in reversed(self.chunks):
            for number, (name, parameter) in reversed(list(enumerate(module.named_parameters()))):
                if bad(getattr(parameter, "main_grad", None)) or bad(parameter.grad):
                    return Seen(chunk=-place, number=-number, text=f"the gradient of {rename(name)}")
        return None

    def where(self) -> str:
        """Run the forward pass of the batch once more, without an update; the origin in words."""
        training, watcher = self.core.training, Watcher(self.chunks)
        ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
        several = len(self.built.chunks) > 1
        batches = [
            iter(data.micro_batches(self.sequences, self.batch, training, ranks, rank)) for _ in self.built.chunks
        ]
        with torch.no_grad(), watcher.watching():
            results = get_forward_backward_func()(
                forward_step_func=forward.forward_step(self.device),
                data_iterator=batches if several else batches[0],
                model=self.built.chunks if several else self.built.chunks[0],
                num_microbatches=training.global_batch_size // (training.micro_batch_size * ranks),
                seq_length=training.sequence_length,
                micro_batch_size=training.micro_batch_size,
                forward_only=True,
            )
        found, gradient = agreed(watcher.first, self.group), agreed(self.gradient, self.group)
        self.gradient = None
        if not found and any(self.group.share(bad([each["loss"] for each in results]))):
            return OF_THE_LOSS
        return found or (f"{FINITE}; first {gradient} is not" if gradient else FINITE)


def global_name(module: Any) -> Callable[[str], str]:
    """A pipeline stage counts its layers from 0: names with the numbers that they have in the whole model."""
    layers = getattr(getattr(module, "decoder", None), "layers", None) or []
    numbers = {str(at): str(getattr(layer, "layer_number", at + 1) - 1) for at, layer in enumerate(layers)}
    return lambda name: re.sub(r"(decoder\.layers\.)(\d+)", lambda found: found[1] + numbers[found[2]], name)
