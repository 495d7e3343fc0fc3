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
NEAR_ENOUGH = 0.05  # 7B is said of 6.74e9; 1B is not said here of 1.24e9


def shape_of_size(parameters: int) -> ModelSpec:
    """The model that is called by this size, unchanged; else the nearest in size, scaled.

    Scaling keeps head size, vocabulary, tying, biases and the form of the layers; it changes layers, width and
    MLP width. The notes say what was assumed. Raises ToolkitError outside 10 million to 20 trillion.
    """
    from toolkit.estimate.parameters import count_parameters
    from toolkit.estimate.scaling import scaled_to
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
    model = scaled_to(base, parameters)
    total = count_parameters(model).total
    note = (
        f"{said} parameters is taken as the {base.name} shape scaled to {model.num_hidden_layers} layers, width "
        f"{model.hidden_size}, MLP width {model.intermediate_size}, {model.num_attention_heads} heads: "
        f"{total:,} parameters"
    )
    name = f"{base.name}-scaled-to-{said.casefold()}"
    return msgspec.structs.replace(model, name=name, source=f"{base.source}, scaled", notes=(note, *base.notes))
