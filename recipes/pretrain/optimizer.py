"""Adam for machines without Transformer Engine and Apex, with their interface, and its place in megatron-core."""

from __future__ import annotations

from typing import Any

import megatron.core.optimizer as library
import megatron.core.optimizer.distrib_optimizer as distributed
import torch
from torch.optim.adam import adam


class GroupStepAdam(torch.optim.Optimizer):
    """AdamW that keeps its step in the parameter group, as FusedAdam of Apex and Transformer Engine does.

    torch's own AdamW keeps one step per parameter. megatron-core's distributed optimizer cannot save or
    resume that (``assert len(steps) == 1``, distrib_optimizer.py:642), and once made to, all parameters
    share one step tensor and training diverges without an error. The arithmetic is torch's.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        **_fused_only: Any,
    ) -> None:
        self.adam_w_mode = adam_w_mode
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    self.state[parameter].update(moments)
            adam(
                parameters,
                [parameter.grad for parameter in parameters],
                [self.state[parameter]["exp_avg"] for parameter in parameters],
                [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
                [],
                [torch.tensor(float(group["step"] - 1)) for _ in parameters],  # adam() adds one itself
                foreach=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
                decoupled_weight_decay=self.adam_w_mode,
            )


def use_group_step_adam() -> None:
    """Let megatron-core build :class:`GroupStepAdam` where it would build torch's AdamW; nothing where it would not."""
    if not library.USING_PYTORCH_OPTIMIZER:
        return
    library.Adam = distributed.Adam = GroupStepAdam
    library.USING_PYTORCH_OPTIMIZER = False
    distributed.HAVE_APEX_OR_TE = distributed.USING_APEX_OPTIMIZER = True
