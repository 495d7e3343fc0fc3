"""From a parameter count to a shape: the nearest dense model that people train, scaled to the count."""

from __future__ import annotations

import math

import msgspec

from toolkit.errors import ToolkitError
from toolkit.model import ModelSpec
from toolkit.units import format_count

# Dense models with Llama's layers, by the size people call them: a count equal to that size means the model.
NOMINAL: dict[int, str] = {
    135_000_000: "smollm2-135m",
    360_000_000: "smollm2-360m",
    500_000_000: "qwen2.5-0.5b",
    1_000_000_000: "llama-3.2-1b",
    1_100_000_000: "tinyllama-1.1b",
    1_500_000_000: "qwen2.5-1.5b",
    1_700_000_000: "smollm2-1.7b",
    3_000_000_000: "llama-3.2-3b",
    4_000_000_000: "qwen3-4b",
    6_000_000_000: "yi-6b",
    7_000_000_000: "llama-2-7b",
    8_000_000_000: "llama-3.1-8b",
    13_000_000_000: "llama-2-13b",
    14_000_000_000: "qwen2.5-14b",
    24_000_000_000: "mistral-small-24b",
    32_000_000_000: "qwen2.5-32b",
    34_000_000_000: "yi-34b",
    65_000_000_000: "llama-65b",
    70_000_000_000: "llama-3.1-70b",
    72_000_000_000: "qwen2.5-72b",
    123_000_000_000: "mistral-large-123b",
    405_000_000_000: "llama-3.1-405b",
}
MIXTURES = {46_702_792_704: "mixtral-8x7b", 140_630_071_296: "mixtral-8x22b"}  # 8x7B and 8x22B
SMALLEST, LARGEST = 10_000_000, 20_000_000_000_000
SMALL = 400_000_000
NEAR_ENOUGH = 0.05  # 7B is said of 6.74e9; 1B is not said here of 1.24e9
GRAIN = 128  # widths stay multiples of this: tensor cores and tensor parallelism want it


def shape_of_size(parameters: int) -> ModelSpec:
    """The model that is called by this size, unchanged; else the nearest in size, scaled.

    Scaling keeps head size, vocabulary, tying, biases and the form of the layers; it changes layers, width and
    MLP width. The notes say what was assumed. Raises ToolkitError outside 10 million to 20 trillion.
    """
    from toolkit.estimate.parameters import count_parameters
    from toolkit.registry.models import load_model

    if not SMALLEST <= parameters <= LARGEST:
        raise ToolkitError(
            f"{parameters:,} parameters is outside what a dense shape is made for",
            remedy=f"use {format_count(SMALLEST)} to {format_count(LARGEST)}, or give the model's own config.json",
        )
    said = format_count(parameters)
    if parameters in MIXTURES:
        return load_model(MIXTURES[parameters])
    if parameters in NOMINAL:
        model = load_model(NOMINAL[parameters])
        total = count_parameters(model).total
        if abs(total - parameters) <= NEAR_ENOUGH * parameters:
            note = f"{said} parameters is taken as the {model.name} shape: {total:,} parameters"
            return msgspec.structs.replace(model, notes=(note, *model.notes))
    base = load_model(NOMINAL[min(NOMINAL, key=lambda size: abs(math.log(size / parameters)))])
    model = _scaled(base, parameters)
    total = count_parameters(model).total
    note = (
        f"{said} parameters is taken as the {base.name} shape scaled to {model.num_hidden_layers} layers, width "
        f"{model.hidden_size}, MLP width {model.intermediate_size}, {model.num_attention_heads} heads: "
        f"{total:,} parameters"
    )
    name = f"{base.name}-scaled-to-{said.casefold()}"
    return msgspec.structs.replace(model, name=name, source=f"{base.source}, scaled", notes=(note, *base.notes))


def _scaled(base: ModelSpec, parameters: int) -> ModelSpec:
    """The shape near the base's proportions whose count is nearest: every width and depth nearby is tried."""
    from toolkit.estimate.parameters import count_parameters

    ends = count_parameters(base)
    growth = (parameters / ends.total) ** (1 / 3)
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
            cost += abs(math.log(grains * grain / width * base.hidden_size / base.intermediate_size))
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
