"""Pairs of answers to one prompt, the chosen one and the rejected one, as tokens, and the order of training.

A row has ``prompt``, ``chosen`` and ``rejected`` as text; or ``chosen`` and ``rejected`` as conversations, whose
prompt is what both begin with (a ``prompt`` beside them is that text again, or messages that come before). Of a prompt
the last ``max_prompt_length`` tokens stay; then a sequence longer than ``sequence_length`` loses its end.

As with sequences, the order depends on the contract's seed alone: optimizer step ``k`` reads the pairs
``k * global_batch_size`` to ``(k + 1) * global_batch_size - 1`` on any number of ranks. Left out: packing, images,
tools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.finetune import chat, data, documents
from recipes.finetune import rows as rows_
from recipes.finetune.documents import Document, Segment
from toolkit.errors import Problem, ToolkitError
from toolkit.recipe import Contract

SAMPLE = documents.PREFERENCES
FORMAT = 2  # of the stored pairs
FORMS = '{"prompt", "chosen", "rejected"} as text, or {"chosen", "rejected"} as messages'
COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")  # as trl's trainer names them


class Pair(NamedTuple):
    """Tokens of one prompt, and of the two answers to it."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


class Pairs(NamedTuple):
    """``n`` pairs: the tokens of each part one after another, and ``n + 1`` places where they begin and end."""

    prompt: np.ndarray
    prompt_ends: np.ndarray
    chosen: np.ndarray
    chosen_ends: np.ndarray
    rejected: np.ndarray
    rejected_ends: np.ndarray

    @property
    def count(self) -> int:
        """``n``."""
        return len(self.prompt_ends) - 1


def encode(row: Mapping[str, Any], tokenizer: Any) -> Pair:
    """One row; raises ToolkitError for columns of another form, and for two conversations that are no two answers."""
    chosen, rejected, prompt = row.get("chosen"), row.get("rejected"), row.get("prompt")
    if isinstance(chosen, list) and isinstance(rejected, list):
        before = prompt if isinstance(prompt, list) else []
        shared = len(before) + _shared(chosen, rejected)
        both = [*before, *chosen], [*before, *rejected]
        shared -= both[0] == both[1]  # the last message of both is the answer
        for each in both:
            chat.check(each)
        _require_answers(both, max(0, shared))
        answers = [chat.answer(each, shared, tokenizer) for each in both]
    elif isinstance(chosen, str) and isinstance(rejected, str) and isinstance(prompt, str):
        for name in ("prompt", "chosen", "rejected"):
            documents.require_text(row[name], name)
        answers = [
            data.encode(Document((Segment(prompt, False), Segment(each, True))), tokenizer)
            for each in (chosen, rejected)
        ]
    else:
        raise ToolkitError(f"columns {rows_.columns(row)}", remedy=f"rows must have {FORMS}")
    places = [flags.index(True) for _, flags in answers]
    (one, _), (other, _) = answers
    # where tokens merge over the edge of the prompt, the answers begin at the last token that is still the same
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = min(*places, same)
    return Pair(one[:start], one[start:], other[start:])


def _shared(chosen: list[Any], rejected: list[Any]) -> int:
    """How many messages both conversations begin with."""
    return next(
        (at for at, (one, other) in enumerate(zip(chosen, rejected, strict=False)) if one != other),
        min(len(chosen), len(rejected)),
    )


def _require_answers(both: tuple[list[Mapping[str, Any]], ...], shared: int) -> None:
    """After what both share, the assistant must speak in both: else their prompts differ, or one has no answer."""
    for name, messages in zip(("chosen", "rejected"), both, strict=True):
        if shared >= len(messages):
            raise ToolkitError(
                f"{name} has no answer of its own: it ends after message {shared}, which both conversations have",
                remedy="correct or remove the row",
            )
        role = messages[shared]["role"]
        if role != "assistant":
            raise ToolkitError(
                f"chosen and rejected part at message {shared + 1}, and in {name} the {role} says it",
                remedy="both must have the same prompt, and then answers of the assistant",
            )


def cut(pair: Pair, contract: Contract) -> Pair | None:
    """What fits, or nothing where an answer has no token left."""
    prompt = pair.prompt[-contract.max_prompt_length :] if contract.max_prompt_length else pair.prompt
    room = contract.sequence_length - len(prompt)
    if room <= 0 or not prompt:
        return None
    return Pair(prompt, pair.chosen[:room], pair.rejected[:room])


def check_file(dataset: str) -> None:
    """Raise ToolkitError where a local dataset is missing or its first row is no pair; reads nothing of the hub."""
    if documents.local_file(dataset) is None:
        documents.hub_name(dataset)
        return
    first = next(documents.read_rows(dataset), None)
    if first is None:
        raise ToolkitError(f"dataset {dataset!r} has no rows", remedy=documents.REMEDY)
    kinds = {type(first.get(name)) for name in ("chosen", "rejected")}
    if kinds != {list} and not (kinds == {str} and isinstance(first.get("prompt"), str)):
        raise ToolkitError(
            f"dataset {dataset!r}: row 1 has the columns {rows_.columns(first)}",
            remedy=f"with objective dpo rows must have {FORMS}",
        )


def build(contract: Contract, tokenizer: Any) -> tuple[Pairs, dict[str, int]]:
    """All pairs of the contract's dataset, and what became of its rows.

    A pair whose answers are the same, or the same as far as they fit, teaches nothing (its loss is a constant): it is
    left out and counted.
    """
    from tqdm import tqdm

    kept: list[Pair] = []
    number = cuts = conversations = alike = 0
    found = documents.read_rows(contract.dataset)
    for number, row in enumerate(tqdm(found, desc="tokenising", unit=" rows", disable=None), start=1):
        try:
            pair = encode(row, tokenizer)
        except ToolkitError as error:
            raise ToolkitError(
                *(Problem(f"row {number} of the dataset: {each.message}", each.remedy) for each in error.problems)
            ) from error
        conversations += isinstance(row["chosen"], list)
        fitting = cut(pair, contract)
        if fitting is None or not (fitting.chosen and fitting.rejected):
            continue
        if fitting.chosen == fitting.rejected:
            alike += 1
            continue
        cuts += fitting != pair
        kept.append(fitting)
    counts = {"pairs": number, "cut": cuts, "dropped": number - len(kept), "of them with answers alike": alike}
    counts |= {"conversations": conversations}
    return _joined(kept), counts | {"tokens trained": sum(len(each.chosen) + len(each.rejected) for each in kept)}


def _joined(pairs: list[Pair]) -> Pairs:
    parts: list[np.ndarray] = []
    for column in zip(*pairs, strict=True) if pairs else ((), (), ()):
        parts += [
            np.asarray([token for tokens in column for token in tokens], np.int32),
            np.cumsum([0, *map(len, column)], dtype=np.int64),
        ]
    return Pairs(*parts)


def split(pairs: Pairs, counts: Mapping[str, int] | None = None) -> tuple[range, range]:
    """Training and held-out pairs: the last 5 % (at least one) are never trained on; ``counts`` tell why there are few.

    Raises ToolkitError for less than two.
    """
    if pairs.count < 2:
        counts = counts or {}
        alike = counts.get("of them with answers alike", 0)
        lost = (
            (counts.get("dropped", 0) - alike, "have a prompt that is empty or fills a sequence"),
            (alike, "have two answers that are the same as far as they fit"),
        )
        why = " and ".join(f"{number} {words}" for number, words in lost if number)
        said = f" (of {counts['pairs']} rows {why})" if why else ""
        raise ToolkitError(
            f"the dataset gives {pairs.count} pair(s){said}; training and evaluation need 2",
            remedy="give more pairs" + (", a max_prompt_length, or a larger sequence_length" if said else ""),
        )
    first = pairs.count - max(1, round(data.HELD_OUT * pairs.count))
    return range(first), range(first, pairs.count)


def dataset(pairs: Pairs, order: Iterable[int]) -> Any:
    """``datasets.Dataset`` of pairs in this order, over the arrays as they lie on the disk."""
    import datasets
    import pyarrow
    from datasets.table import InMemoryTable

    columns = [
        pyarrow.LargeListArray.from_arrays(pyarrow.array(ends), pyarrow.array(tokens))
        for tokens, ends in ((pairs[at], pairs[at + 1]) for at in (0, 2, 4))
    ]
    table = pyarrow.table(columns, names=list(COLUMNS))
    whole = datasets.Dataset(InMemoryTable(table), fingerprint=hashlib.sha256(pairs.chosen[:4096]).hexdigest()[:16])
    return whole.select(np.fromiter(order, np.int64))


def order(training: range, samples: int, seed: int, global_batch: int = 1, skipped: Sequence[int] = ()) -> np.ndarray:
    """The pairs of a run: epoch after epoch, each in its own seeded permutation (as ``data.Sequences``)."""
    count = len(training)
    places = np.arange(samples)
    for batch in skipped:  # in ascending order: each moves what is behind it by one batch
        places[places >= batch * global_batch] += global_batch
    most = int(places[-1]) + 1 if samples else 0
    epochs = [np.random.default_rng([seed, epoch]).permutation(count) for epoch in range(-(-most // count))]
    return np.concatenate(epochs)[places]


def cache_folder(output_dir: Path, contract: Contract) -> Path:
    """Where the pairs of this dataset, tokenizer and lengths lie; a changed local file is another dataset."""
    parts = (FORMAT, "pairs", contract.max_prompt_length)
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
    place = data.cache_folder(output_dir, contract)
    return place.with_name(f"{place.name}-{name}")


def load(folder: Path) -> Pairs:
    """The stored pairs."""
    return data.load_as(Pairs, folder)
