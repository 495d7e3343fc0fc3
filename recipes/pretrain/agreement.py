"""What the megatron file says of the experiment must be what the plan's contract says: the contract is its identity.

A checkpoint goes on under the contract that it was saved under. The program takes batch, schedule and optimizer from
the megatron file; edited there alone they would make another experiment that calls itself the same.
"""

from __future__ import annotations

from typing import Any

from recipes.pretrain.config import CoreConfig
from toolkit.errors import Problems
from toolkit.plan import Plan
from toolkit.recipe import Contract, planned_steps, warmup_steps

REMEDY = (
    "write the megatron file again with: toolkit emit PLAN.json --out DIR; another value is another experiment: change"
    " it in the recipe, and plan again"
)


def wanted(contract: Contract) -> dict[str, dict[str, Any]]:
    """Section and key: the contract's value, as :mod:`toolkit.emit.megatron_core` writes it."""
    steps = planned_steps(contract)
    return {
        "optimizer": {
            "lr": contract.learning_rate,
            "min_lr": contract.min_learning_rate,
            "weight_decay": contract.weight_decay,
            "adam_beta1": contract.adam_beta1,
            "adam_beta2": contract.adam_beta2,
            "adam_eps": contract.adam_epsilon,
            "clip_grad": contract.gradient_clipping,
        },
        "training": {
            "global_batch_size": contract.global_batch_size,
            "sequence_length": contract.sequence_length,
            "train_steps": steps,
            "lr_warmup_steps": warmup_steps(contract, steps),
            "lr_decay_style": contract.schedule,
            "seed": contract.seed,
        },
    }


def check(problems: Problems, plan: Plan, core: CoreConfig) -> None:
    """Add each value that is another one, with both."""
    for section, values in wanted(plan.contract).items():
        held = getattr(core, section)
        for key, value in values.items():
            found = held.get(key) if isinstance(held, dict) else getattr(held, key)
            if isinstance(found, bool) or found != value:
                told = "absent" if found is None else f"{found!r}"[:60]
                problems.add(f"{section}.{key} is {told} in the megatron file, the plan's contract has {value}", REMEDY)
