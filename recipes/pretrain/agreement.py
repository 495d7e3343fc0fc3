"""What the megatron file says of the experiment must be what the plan's contract says: the contract is its identity.

A checkpoint goes on under the contract that it was saved under. The program takes batch, schedule and optimizer from
the megatron file; edited there alone they would make another experiment that calls itself the same.
"""

from __future__ import annotations

from recipes.pretrain.config import CoreConfig
from toolkit.emit.megatron_core import of_contract
from toolkit.errors import Problems
from toolkit.plan import Plan

REMEDY = (
    "write the megatron file again with: toolkit emit PLAN.json --out DIR; another value is another experiment: change"
    " it in the recipe, and plan again"
)


def check(problems: Problems, plan: Plan, core: CoreConfig) -> None:
    """Add each value that is another one, with both."""
    for section, values in of_contract(plan.contract).items():
        held = getattr(core, section)
        for key, value in values.items():
            found = held.get(key) if isinstance(held, dict) else getattr(held, key)
            if isinstance(found, bool) or found != value:
                told = "absent" if found is None else f"{found!r}"[:60]
                problems.add(f"{section}.{key} is {told} in the megatron file, the plan's contract has {value}", REMEDY)
