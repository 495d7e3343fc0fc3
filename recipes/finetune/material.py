"""What a run reads: sequences, or pairs of them, tokenised once by rank 0 and mapped by all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recipes import program, waiting
from recipes.finetune import chat, data, preferences, preparation
from recipes.resume import Start
from recipes.tokenizer import require_rows
from toolkit.errors import ToolkitError
from toolkit.plan import Plan
from toolkit.runtime import durable


class Material(NamedTuple):
    """``training`` and ``held_out`` count units; ``datasets(samples, skipped)`` gives both.

    The first comes in its final order, without the batches that are skipped.
    """

    unit: str  # sequences | pairs
    training: int
    held_out: int
    several: bool  # documents share sequences
    counts: dict[str, int]
    remark: str
    datasets: Callable[[int, Sequence[int]], tuple[Any, Any]]


def read(plan: Plan, tokenizer: Any, pad: int, folder: Path, rank: int, workers: int = 0) -> Material:
    """The material of the contract; the tokenizer keeps the chat template that was used.

    Rank 0 tokenises what is not prepared, by so many processes (0: one per core), and the others wait for it without a
    collective.
    """
    contract, world_size = plan.contract, program.place()[1]
    require_rows(tokenizer, plan.model.vocab_size)
    kind = preferences if contract.objective == "dpo" else data
    cache = kind.cache_folder(folder, contract)
    own = tokenizer.chat_template
    remark = chat.with_template(tokenizer, contract.chat_template)

    def build() -> None:
        if cache.is_dir():
            return
        if contract.objective == "dpo":
            data.store(*preferences.build(contract, tokenizer), cache)
        else:
            preparation.make(plan, tokenizer, pad, cache, world_size, workers)

    waiting.first_rank_works(build, rank, world_size)
    waiting.until_there(cache / "counts.json")
    counts = data.counts(cache)
    if not counts["conversations"]:
        tokenizer.chat_template, remark = own, ""
    return (_pairs if contract.objective == "dpo" else _sequences)(plan, cache, counts, remark)


def identity(plan: Plan, folder: Path) -> str:
    """SHA-256 of the tokens themselves, read once; what files they are made of, and when those were written, is not in.

    Of rank 0: the others, who have no use for it, get an empty text.
    """
    if program.place()[0]:
        return ""
    kind = preferences if plan.contract.objective == "dpo" else data
    cache = kind.cache_folder(folder, plan.contract)
    note = cache / "sha256"
    if not note.is_file():
        total = hashlib.sha256()
        for path in sorted(each for each in cache.iterdir() if each.is_file() and each.suffix != ".json"):
            with path.open("rb", buffering=0) as file:
                while piece := file.read(8 * 2**20):
                    total.update(piece)
        durable.replace(note, total.hexdigest().encode())
    return note.read_text()


def require_same(plan: Plan, folder: Path, start: Start) -> None:
    """Raise ToolkitError where a run would go on with other tokens than it was saved with; for every rank to call."""
    saved, now = (start.facts.get("data") or {}).get("sha256", ""), identity(plan, folder)
    if saved and now and saved != now:
        raise ToolkitError(
            f"{start.path} was trained on other tokens than {plan.contract.dataset!r} now has",
            remedy="restore the data, or start anew in another --output-dir",
        )


def _sequences(plan: Plan, cache: Path, counts: dict[str, int], remark: str) -> Material:
    blocks, seed, batch = data.load(cache), plan.contract.seed, plan.contract.global_batch_size
    training, held_out = data.split(blocks, counts)

    def datasets(samples: int, skipped: Sequence[int]) -> tuple[Any, Any]:
        return (
            data.Sequences(training, samples, seed, True, batch, skipped),
            data.Sequences(held_out, len(held_out.tokens), seed, shuffle=False),
        )

    several = data.documents_in(blocks) > len(blocks.tokens)
    return Material("sequences", len(training.tokens), len(held_out.tokens), several, counts, remark, datasets)


def _pairs(plan: Plan, cache: Path, counts: dict[str, int], remark: str) -> Material:
    pairs = preferences.load(cache)
    training, held_out = preferences.split(pairs, counts)

    def datasets(samples: int, skipped: Sequence[int]) -> tuple[Any, Any]:
        order = preferences.order(training, samples, plan.contract.seed, plan.contract.global_batch_size, skipped)
        return preferences.dataset(pairs, order), preferences.dataset(pairs, held_out)

    return Material("pairs", len(training), len(held_out), False, counts, remark, datasets)
