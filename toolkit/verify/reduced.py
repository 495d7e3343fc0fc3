"""A plan with fewer layers and micro batches that has the same kinds of ranks: what a dry run needs."""

from __future__ import annotations

from typing import Any

import msgspec

from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec
from toolkit.pipeline_split import IMPOSSIBLE, pipeline_split
from toolkit.plan import Plan


def with_layers(model: ModelSpec, layers: int) -> ModelSpec:
    """The first ``layers`` layers of a model; raises ToolkitError where it has fewer."""
    if not 1 <= layers <= model.num_hidden_layers:
        raise ToolkitError(
            f"{layers} layers of {model.name}, which has {model.num_hidden_layers}",
            remedy=f"use --layers 1 to {model.num_hidden_layers}",
        )
    cut: dict[str, Any] = {
        "num_hidden_layers": layers,
        "sliding_window_layers": min(model.sliding_window_layers, layers),
    }
    for name in ("mixers", "mlps", "counted_layers"):
        cut[name] = getattr(model, name)[:layers]
    return msgspec.structs.replace(model, **cut)


def micro_batches(plan: Plan) -> int:
    """As few as show the most that a step holds: two, or with a pipeline as many as can be in flight.

    A schedule holds at most ``p`` micro batches (interleaved: ``2 p - 1`` halves and more of them, in multiples of
    ``p``); later ones find room that an earlier one left. Accumulation itself shows with the second.
    """
    s = plan.strategy
    enough = 2 * s.pp if s.virtual_pipeline_stages > 1 else max(2, s.pp + 1)
    return min(s.gradient_accumulation_steps, enough)


def reduced(plan: Plan, layers: int) -> Plan:
    """The plan to run dry: ``layers`` layers (0: all), few micro batches, a global batch that fits them."""
    s = plan.strategy
    model = with_layers(plan.model, layers or plan.model.num_hidden_layers)
    split = pipeline_split(model.num_hidden_layers, s.pp, s.virtual_pipeline_stages)
    if split.way == IMPOSSIBLE:
        chunks = s.pp * s.virtual_pipeline_stages
        raise ToolkitError(
            f"{model.num_hidden_layers} layers cannot be split over {s.pp} stages with"
            f" {s.virtual_pipeline_stages} virtual ones",
            remedy=f"use a multiple of {chunks}: --layers {chunks}",
        )
    number = micro_batches(plan)
    batch = number * s.micro_batch_size * s.dp
    return msgspec.structs.replace(
        plan,
        model=model,
        strategy=msgspec.structs.replace(s, gradient_accumulation_steps=number),
        workload=msgspec.structs.replace(plan.workload, global_batch_size=batch),
        contract=msgspec.structs.replace(plan.contract, global_batch_size=batch),
    )
