"""What rows of measured runs are looked up in: registered models and cards, each name once, however it is written."""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.cluster import Accelerator
    from toolkit.model import ModelSpec
    from toolkit.validate.job import Lookups, Machines

# how far a stated memory may be from the card's: 39.4 of 40 GB, 192 of 180 (what is sold, and what can be used)
NEAR = 0.10
# names of machines around the cards, and counts: they are not part of the card's name
_BOXES = r"\b(dgx|hgx|gpus?|cards?|nodes?|geforce)\b"
_COUNTS = r"^\s*\d+\s*x\s*\d+\s*x?\s+|^\s*\d+\s*[x×*]\s*(?=[a-z])|^\s*\d+\s+(?=[a-z])|\s*[x×*]\s*\d+\s*$"
_MEMORY = r"(?<![a-z0-9.])(\d+(?:\.\d+)?)\s*gi?b?\b"
# sizes that stand for a GPT of another name
_GPT = {
    **dict.fromkeys(("gpt175b", "gpt3175b"), "gpt3-175b"),
    "gpt13b": "gpt3-13b",
    "gpt6.7b": "gpt3-6.7b",
    "gpt1.3b": "gpt3-1.3b",
    "gpt530b": "megatron-530b",
    "gpt21.5b": "gpt2-xl",
    "gpt21.6b": "gpt2-xl",
    "gpt2774m": "gpt2-large",
    "gpt2762m": "gpt2-large",
    "gpt2345m": "gpt2-medium",
    "gpt2355m": "gpt2-medium",
    "gpt2124m": "gpt2",
    "gpt2117m": "gpt2",
}


def lookups() -> Lookups:
    """The registry as rows need it."""
    from toolkit.registry import files, models
    from toolkit.validate.job import Lookups
    from toolkit.validate.shape import Models

    @functools.cache
    def find(name: str) -> ModelSpec | None:
        return models.load_model(name) if name and models.find(name) is not None else None

    @functools.cache
    def every() -> tuple[ModelSpec, ...]:
        return tuple(models.load_model(name) for name in models.names())

    @functools.cache
    def by_letters() -> dict[str, str]:
        found: dict[str, str] = {}
        for entry in files.entries(models.KIND).values():
            for name in (*entry.values.get("aliases", ()), entry.name):
                found[_letters(str(name))] = entry.name
        return found

    @functools.cache
    def spelled(name: str) -> ModelSpec | None:
        letters = _letters(re.split(r"[/\\]", name)[-1])
        found = _GPT.get(letters) or by_letters().get(letters)
        return models.load_model(found) if found else None

    return Lookups(Models(find, every, spelled), functools.cache(machines))


def _letters(name: str) -> str:
    """Letters, digits and decimal points: what is left of a name that people part in many ways."""
    folded = re.sub(r"\(.*?\)|\b(instruct|chat|base|hf|meta)\b", "", name.casefold())
    return re.sub(r"[^a-z0-9.]|\.(?!\d)|(?<!\d)\.", "", folded)


def machines(gpu: str, memory_gb: float | None, gpus: int, per_node: int | None) -> Machines:
    """Usual nodes of the accelerator that the row names; raises ToolkitError for a card that is not known.

    Of several cards of that name those count whose memory is the stated one. Where it is not stated, the planner takes
    the least, to be safe; a published run is known to have fitted, and comes from the strongest card of that name: most
    FLOP/s, then bandwidth and memory. SXM comes before other forms that are equal.
    """
    from toolkit.registry.clusters import resolve_cluster
    from toolkit.validate.job import Machines

    card, said = _card(gpu, memory_gb)
    usual = resolve_cluster(None, accelerator=card.name).gpus_per_node
    size = min(per_node or usual, gpus)
    if gpus % size:
        stated = size
        size = next(each for each in range(size, 0, -1) if gpus % each == 0)
        said.append(f"{gpus // size} nodes of {size} ({gpus} GPUs do not fill nodes of {stated})")
        per_node = size
    cluster = resolve_cluster(gpus, accelerator=card.name, gpus_per_node=min(per_node, gpus) if per_node else None)
    return Machines(cluster, tuple(said))


def _card(gpu: str, memory_gb: float | None) -> tuple[Accelerator, list[str]]:
    from toolkit.errors import ToolkitError
    from toolkit.registry.accelerators import accelerator_names, could_mean, load_accelerator, match_accelerator

    text = re.sub(r"\(.*?\)", "", gpu).strip()
    named = re.search(_MEMORY, text.casefold())
    if named:
        memory_gb = memory_gb or float(named[1])
        text = text[: named.start()] + text[named.end() :]
    bare = re.sub(_BOXES, " ", re.sub(r"[_-]", " ", text), flags=re.IGNORECASE).strip()
    bare = re.sub(_COUNTS, " ", bare, flags=re.IGNORECASE).strip()
    try:
        name = bare if bare and match_accelerator(bare) else text
    except ToolkitError:
        name = text
    try:
        match_accelerator(name)
    except ToolkitError:
        raise ToolkitError(f"unknown accelerator {gpu[:80]!r}", remedy="toolkit accelerators lists all") from None
    cards = [load_accelerator(each) for each in accelerator_names() if could_mean(name, each)]
    fitting = cards if memory_gb is None else [card for card in cards if _distance(card, memory_gb) <= NEAR]
    if not fitting:
        known = ", ".join(card.name for card in cards)
        raise ToolkitError(f"{gpu[:60]!r} with {memory_gb:g} GB; known: {known}")
    if memory_gb is not None:
        nearest = min(_distance(card, memory_gb) for card in fitting)
        fitting = [card for card in fitting if _distance(card, memory_gb) <= nearest + 0.005]
    chosen = max(fitting, key=_strength)
    others = len(fitting) > 1 or (memory_gb is None and len(cards) > 1)
    return chosen, [f"{chosen.name} of several {' '.join(name.split())}"] if others else []


def _distance(card: Accelerator, memory_gb: float) -> float:
    """By how much a stated memory differs from the card's, as it is sold or as it is read, in GB or GiB."""
    sold = re.search(r"-(\d+)gb$", card.name)
    readings = [card.memory_bytes / 1e9, card.memory_bytes / 2**30, *([float(sold[1])] if sold else [])]
    return min(abs(math.log(memory_gb / each)) for each in readings)


def _strength(card: Accelerator) -> tuple[float, bool, float, float]:
    return (
        max(card.peak_flop_per_second.values()),
        "-sxm" in card.name,
        card.memory_bandwidth_bytes_per_second,
        card.memory_bytes,
    )
