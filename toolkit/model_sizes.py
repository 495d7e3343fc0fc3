"""Model sizes as people write them, and the sizes that stand in model names: ``7B``, ``Llama-2-7b-hf``."""

from __future__ import annotations

import re
from typing import NamedTuple

from toolkit.errors import ToolkitError

_COUNT_UNITS = {
    "k": 1e3,
    "thousand": 1e3,
    "m": 1e6,
    "million": 1e6,
    "b": 1e9,
    "bn": 1e9,
    "billion": 1e9,
    "t": 1e12,
    "trillion": 1e12,
}
_MODEL_SIZE = re.compile(
    r"\+?(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:e\+?[0-9]{1,2})?)"
    r"\s*(?P<unit>[a-z]+)?(?:\s+param(?:eter)?s?)?"
)
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9 ._:/\\@+-]*")
_SIZE_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?[bmt]")
_ACTIVE_TOKEN = re.compile(r"a[0-9]+(?:\.[0-9]+)?[bm]")  # Qwen3-30B-A3B: 3B of 30B are active
_EFFECTIVE_TOKEN = re.compile(r"e[0-9]+(?:\.[0-9]+)?b")  # gemma-3n-E4B: as if it were 4B
_EXPERTS_TOKEN = re.compile(r"[0-9]+e")  # Llama-4-Scout-17B-16E: 17B are active, 16 experts
_MIXTURE = re.compile(r"[0-9]+x[0-9]+(?:\.[0-9]+)?[bm]")
# The product overstates: only the MLPs are repeated (counts of mistralai's own configurations).
_MIXTURES = {"8x7b": 46_702_792_704, "8x22b": 140_630_071_296}
_LEAST_BARE_COUNT = 1_000_000  # a bare number below this is more likely short for billions
_GREATEST_COUNT = 1e15
_SIZE_REMEDY = "write a count such as 7B, 350M or 1.5T, or name a model with --model"


class ModelSize(NamedTuple):
    """A parameter count as it was written, and what had to be assumed to read it."""

    parameters: int
    notes: tuple[str, ...] = ()


def read_size(text: str) -> ModelSize:
    """A size as people write it (``7B``, ``6.7e9``, ``1.3 B``, ``7,000,000,000``), or the one in a model's name.

    Of a path the last part counts, of a name only a whole token: ``4bit`` is not 4B, ``13B`` is not 3B. Raises
    ToolkitError for what is no size (``abc35b!!``, ``-7B``, ``NaN``), for a bare small number (``70`` could mean
    70B), and for names that give no total (``phi3:mini``, active sizes alone, several sizes).
    """
    lowered = text.strip().casefold()
    if not lowered:
        raise ToolkitError("the model size is empty", remedy=_SIZE_REMEDY)
    match = _MODEL_SIZE.fullmatch(lowered)
    if match and (match["unit"] is None or match["unit"] in _COUNT_UNITS):
        return _plain_count(text, match["number"], match["unit"])
    if match and re.fullmatch(r"[kmgt]i?b", match["unit"]):
        raise ToolkitError(f"{text!r} is an amount of memory, not a number of parameters", remedy=_SIZE_REMEDY)
    if not _MODEL_NAME.fullmatch(lowered):
        raise ToolkitError(f"{text!r} is neither a size nor a model's name", remedy=_SIZE_REMEDY)
    return _size_in_name(text, re.split(r"[/\\]", lowered.rstrip("/\\"))[-1])


def _plain_count(text: str, number: str, unit: str | None) -> ModelSize:
    value = float(number.replace(",", "").replace("_", "")) * _COUNT_UNITS.get(unit or "", 1.0)
    if unit is None and 0 < value < _LEAST_BARE_COUNT:
        raise ToolkitError(
            f"{text!r} is ambiguous: {number} parameters, or {number} billion?",
            remedy=f"did you mean {number}B? write the unit",
        )
    if not 1 <= value <= _GREATEST_COUNT:
        raise ToolkitError(f"{text!r} is not a possible number of parameters", remedy=_SIZE_REMEDY)
    return ModelSize(round(value))


def _size_in_name(text: str, name: str) -> ModelSize:
    # a dot between digits belongs to a number, any other parts words: llama-2-7b.Q4_K_M.gguf
    tokens = [token for token in re.split(r"[-_:@+\s]+|(?<![0-9])\.|\.(?![0-9])", name) if token]
    mixtures = [token for token in tokens if _MIXTURE.fullmatch(token)]
    if mixtures:
        if len(mixtures) == 1 and mixtures[0] in _MIXTURES:
            return ModelSize(_MIXTURES[mixtures[0]], (f"{mixtures[0]} shares all but its experts: not their product",))
        raise ToolkitError(
            f"{text!r} is experts x size, which is not a parameter count", remedy="name the model, or write its total"
        )
    sizes = dict.fromkeys(token for token in tokens if _SIZE_TOKEN.fullmatch(token))
    if len(sizes) > 1:  # TinyLlama-1.1B-...-3T: trained on 3T tokens
        sizes = {size: None for size in sizes if not size.endswith("t")}
    active = [token for token in tokens if _ACTIVE_TOKEN.fullmatch(token)]
    if len(sizes) == 1:
        (size,) = sizes
        experts = [token for token in tokens if _EXPERTS_TOKEN.fullmatch(token)]
        if experts and not active:
            raise ToolkitError(
                f"{text!r}: {size} beside {experts[0]} (experts) is the active size, not the total",
                remedy="name the model with --model, or write its total",
            )
        others = [token for token in tokens if token != size]
        notes = (f"read as {size.upper()}; {', '.join(others)} ignored",) if others else ()
        return ModelSize(_plain_count(text, size[:-1], size[-1]).parameters, notes)
    effective = [token for token in tokens if _EFFECTIVE_TOKEN.fullmatch(token)]
    if not sizes and len(effective) == 1:
        count = _plain_count(text, effective[0][1:-1], "b").parameters
        return ModelSize(count, (f"{effective[0].upper()} is an effective size; the total is not known from it",))
    if sizes:
        raise ToolkitError(f"{text!r} holds several sizes: {', '.join(sizes)}", remedy=_SIZE_REMEDY)
    if active:
        raise ToolkitError(f"{text!r} tells only its active size, {active[0]}", remedy=_SIZE_REMEDY)
    raise ToolkitError(f"{text!r} does not tell a size", remedy=_SIZE_REMEDY)
