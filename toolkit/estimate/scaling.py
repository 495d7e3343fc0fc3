"""A model shape scaled to another parameter count, with the proportions that people train."""

from __future__ import annotations

import math

import msgspec

from toolkit.errors import ToolkitError
from toolkit.estimate.parameters import count_parameters
from toolkit.model import ModelSpec

SMALL = 400_000_000  # parameters; below, widths and heads go in finer steps, as small models are trained: a choice
WIDEST_MLP = 4.0  # times the width: what models up to hundreds of billions of parameters have, most of them 2.7 to 4
GRAIN = 128  # widths stay multiples of this: tensor cores and tensor parallelism want it


def scaled_to(base: ModelSpec, parameters: int) -> ModelSpec:
    """The shape near the base's proportions whose count is nearest: every width and depth nearby is tried.

    Head size, vocabulary, tying, biases and the form of the layers stay; layers, width and MLP width change. A base
    whose MLP is wider than WIDEST_MLP lends its other proportions only.
    Raises ToolkitError when the vocabulary alone is larger than the count.
    """
    ends = count_parameters(base)
    ratio = min(base.intermediate_size / base.hidden_size, WIDEST_MLP)
    alike = msgspec.structs.replace(base, intermediate_size=round(ratio * base.hidden_size))
    growth = (parameters / count_parameters(alike).total) ** (1 / 3)
    step, grain = _width_step(base, parameters), GRAIN if parameters >= SMALL else GRAIN // 2
    middle = max(round(base.hidden_size * growth / step), 1)
    best: tuple[float, ModelSpec] | None = None
    for units in range(max(middle * 3 // 4, 1), middle * 4 // 3 + 2):
        width = units * step
        for layers in _depths(base.num_hidden_layers * growth):
            shape = _with_width(base, width, layers)
            # the count is linear in the MLP width: one count at the least width gives all the others
            least, per_grain = count_parameters(shape).total, layers * (2 + base.gated_mlp) * width * grain
            grains = GRAIN // grain + round((parameters - least) / per_grain)
            if grains < 1:
                continue
            error = abs(least + (grains - GRAIN // grain) * per_grain - parameters) / parameters
            # up to a fifth of a percent, good proportions are worth more than the last digit
            cost = max(error, 0.002) * 40 + abs(math.log(width / (base.hidden_size * growth)))
            cost += 0.5 * abs(math.log(layers / (base.num_hidden_layers * growth)))
            cost += abs(math.log(grains * grain / width / ratio))
            if best is None or cost < best[0]:
                best = cost, msgspec.structs.replace(shape, intermediate_size=grains * grain)
    if best is None:
        raise ToolkitError(
            f"no dense shape like {base.name} has {parameters:,} parameters: its vocabulary alone takes "
            f"{ends.embedding:,}",
            remedy="give the model's own config.json",
        )
    return best[1]


def _width_step(base: ModelSpec, parameters: int) -> int:
    """Widths to try: whole heads, and so many that key and value heads (or tensor parallelism by 8) divide them."""
    grouped = base.num_key_value_heads < base.num_attention_heads
    together = base.num_key_value_heads if grouped else 8
    if parameters < SMALL:  # too coarse for little models, which need no tensor parallelism
        together = 1
    return math.lcm(GRAIN, base.head_dim * together)


def _depths(wanted: float) -> list[int]:
    """Depths to try: even ones, and multiples of four from 16 on (they divide over pipeline stages)."""
    step = 4 if wanted >= 16 else 2
    middle = max(round(wanted / step), 1)
    return [step * count for count in range(max(middle - 3, 1), middle + 4)]


def _with_width(base: ModelSpec, width: int, layers: int) -> ModelSpec:
    """The base with this width and depth and the least MLP."""
    heads = max(width * base.num_attention_heads // base.hidden_size, 1)
    groups = heads if base.num_key_value_heads == base.num_attention_heads else base.num_key_value_heads
    while heads % groups:
        groups -= 1
    return msgspec.structs.replace(
        base,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        intermediate_size=GRAIN,
        sliding_window_layers=0,
    )
