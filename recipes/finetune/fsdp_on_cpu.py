"""Real FSDP2 on processors, for tests and first tries; of no effect where there is an accelerator.

accelerate 1.15 switches FSDP on for accelerators only (``state.py``, the list of distributed types in
``AcceleratorState.__init__``): on processors it runs plain DDP instead and does not say so, though torch's
``fully_shard`` works on gloo. Here the state is set as that list would set it.
"""

from __future__ import annotations

from typing import Any


def switch_on() -> None:
    """Before TrainingArguments exist: several processes without accelerators are sharded where the plan says so."""
    from accelerate import state
    from accelerate.utils import DistributedType

    original = state.AcceleratorState.__init__
    if getattr(original, "shards_on_cpu", False):
        return

    def initialise(self: Any, *positional: Any, fsdp_plugin: Any = None, **keywords: Any) -> None:
        original(self, *positional, fsdp_plugin=fsdp_plugin, **keywords)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            state.PartialState._shared_state["distributed_type"] = self.distributed_type

    initialise.shards_on_cpu = True  # type: ignore[attr-defined]
    state.AcceleratorState.__init__ = initialise
