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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.finetune import chat, data, documents
from recipes.finetune.documents import Document, Segment
from toolkit.errors import Problem, ToolkitError
from toolkit.recipe import Contract

SAMPLE = documents.PREFERENCES
FORMAT = 1  # of the stored pairs
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
    """One row; raises ToolkitError for columns of another form."""
    chosen, rejected, prompt = row.get("chosen"), row.get("rejected"), row.get("prompt")
    if isinstance(chosen, list) and isinstance(rejected, list):
        before = prompt if isinstance(prompt, list) else []
        shared = 0
        while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
            shared += 1
        answers = [_answer([*before, *each], len(before) + shared, tokenizer) for each in (chosen, rejected)]
    elif isinstance(chosen, str) and isinstance(rejected, str) and isinstance(prompt, str):
        answers = [
            data.encode(Document((Segment(prompt, False), Segment(each, True))), tokenizer)
            for each in (chosen, rejected)
        ]
    else:
        raise ToolkitError(f"columns {', '.join(map(str, row)) or 'none'}", remedy=f"rows must have {FORMS}")
    places = [flags.index(True) for _, flags in answers]
    (one, _), (other, _) = answers
    # where tokens merge over the edge of the prompt, the answers begin at the last token that is still the same
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = min(*places, same)
    return Pair(one[:start], one[start:], other[start:])


def _answer(messages: list[Mapping[str, Any]], shared: int, tokenizer: Any) -> chat.Encoded:
    """A conversation, of which what follows the ``shared`` messages is the answer."""
    if shared == len(messages):
        raise ToolkitError(
            "both conversations are the same, or one is the beginning of the other", remedy="remove the row"
        )
    return chat.answer(messages, shared, tokenizer)


def cut(pair: Pair, contract: Contract) -> Pair | None:
    """What fits, or nothing where an answer has no token left."""
    prompt = pair.prompt[-contract.max_prompt_length :] if contract.max_prompt_length else pair.prompt
    room = contract.sequence_length - len(prompt)
    if room <= 0 or not prompt:
        return None
    return Pair(prompt, pair.chosen[:room], pair.rejected[:room])


def rows(dataset: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a local file or of a data set of the hub."""
    return documents.read_rows(dataset)


def check_file(dataset: str) -> None:
    """Raise ToolkitError where a local dataset is missing or its first row is no pair; reads nothing of the hub."""
    if documents.local_file(dataset) is None:
        documents.hub_name(dataset)
        return
    first = next(rows(dataset), None)
    if first is None:
        raise ToolkitError(f"dataset {dataset!r} has no rows", remedy=documents.REMEDY)
    kinds = {type(first.get(name)) for name in ("chosen", "rejected")}
    if kinds != {list} and not (kinds == {str} and isinstance(first.get("prompt"), str)):
        raise ToolkitError(
            f"dataset {dataset!r}: row 1 has the columns {', '.join(map(str, first)) or 'none'}",
            remedy=f"with objective dpo rows must have {FORMS}",
        )


def build(contract: Contract, tokenizer: Any) -> tuple[Pairs, dict[str, int]]:
    """All pairs of the contract's dataset, and what became of its rows."""
    from tqdm import tqdm

    kept: list[Pair] = []
    number = cuts = conversations = 0
    for number, row in enumerate(tqdm(rows(contract.dataset), desc="tokenising", unit=" rows", disable=None), start=1):
        try:
            pair = encode(row, tokenizer)
        except ToolkitError as error:
            raise ToolkitError(
                *(Problem(f"row {number} of the dataset: {each.message}", each.remedy) for each in error.problems)
            ) from error
        conversations += isinstance(row["chosen"], list)
        fitting = cut(pair, contract)
        if fitting is not None and fitting.chosen and fitting.rejected:
            cuts += fitting != pair
            kept.append(fitting)
    counts = {"pairs": number, "cut": cuts, "dropped": number - len(kept), "conversations": conversations}
    return _joined(kept), counts | {"tokens trained": sum(len(each.chosen) + len(each.rejected) for each in kept)}


def _joined(pairs: list[Pair]) -> Pairs:
    parts: list[np.ndarray] = []
    for column in zip(*pairs, strict=True) if pairs else ((), (), ()):
        parts += [
            np.asarray([token for tokens in column for token in tokens], np.int32),
            np.cumsum([0, *map(len, column)], dtype=np.int64),
        ]
    return Pairs(*parts)


def split(pairs: Pairs) -> tuple[range, range]:
    """Training and held-out pairs: the last 5 % (at least one) are never trained on."""
    if pairs.count < 2:
        raise ToolkitError(
            f"the dataset gives {pairs.count} pair(s); training and evaluation need 2", remedy="give more pairs"
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


def order(training: range, samples: int, seed: int) -> np.ndarray:
    """The pairs of a run: epoch after epoch, each in its own seeded permutation (as ``data.Sequences``)."""
    count = len(training)
    epochs = [np.random.default_rng([seed, epoch]).permutation(count) for epoch in range(-(-samples // count))]
    return np.concatenate(epochs)[:samples]


def cache_folder(output_dir: Path, contract: Contract) -> Path:
    """Where the pairs of this dataset, tokenizer and lengths lie; a changed local file is another dataset."""
    parts = (FORMAT, "pairs", contract.max_prompt_length)
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
    place = data.cache_folder(output_dir, contract)
    return place.with_name(f"{place.name}-{name}")


def load(folder: Path) -> Pairs:
    """The stored pairs."""
    return data.load_as(Pairs, folder)
