"""Documents to blocks of tokens, and the order in which training reads them.

The order depends on the contract's seed alone. Sequence ``i`` of a run is the same on 1 rank and on
1000, at any micro batch and after any restart: optimizer step ``k`` always reads the sequences
``k * global_batch_size`` to ``(k + 1) * global_batch_size - 1``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from recipes.finetune import packing, tokenise
from recipes.finetune.documents import Document, local_file, read_documents
from recipes.finetune.packing import IGNORED, Blocks
from recipes.finetune.rows import files_of
from recipes.finetune.tokenise import Pace, encode
from toolkit.errors import ToolkitError
from toolkit.recipe import Contract
from toolkit.registry.files import expanded, is_there
from toolkit.runtime import durable
from toolkit.runtime.skipped import sample_of

__all__ = ["IGNORED", "Sequences", "build", "cache_folder", "counts", "encode", "load", "load_as", "split", "store"]

Arrays = TypeVar("Arrays", bound=NamedTuple)

HELD_OUT = 0.05
ABANDONED_SECONDS = 86400.0  # after which what is half written is of nobody at work
FORMAT = 3  # of the stored blocks
TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.jinja")  # files


def build(
    contract: Contract,
    tokenizer: Any,
    padding: int,
    workers: int = 1,
    paced: Callable[[Pace], None] = lambda pace: None,
) -> tuple[Blocks, dict[str, int]]:
    """All sequences of the contract's dataset, and what became of its documents; the same by any number of workers."""
    from tqdm import tqdm

    conversations = 0

    def counted() -> Iterator[Document]:
        nonlocal conversations
        rows = read_documents(contract.dataset)
        for document in tqdm(rows, desc="tokenising", unit=" rows", disable=None):  # on a terminal only
            conversations += bool(document.messages)
            yield document

    pieces = list(tokenise.pieces(counted(), tokenizer, contract.completion_only, workers, paced))
    try:
        blocks, counts = _packed(pieces, contract, padding)
    except MemoryError as error:
        raise ToolkitError(
            f"the sequences of {len(pieces):,} documents do not fit into this machine's memory, each as wide as"
            f" sequence_length {contract.sequence_length:,}: {error}",
            remedy="use a smaller sequence_length, packing, or a machine with more memory",
        ) from error
    trained = int((blocks.labels != IGNORED).sum())
    return blocks, counts | {"conversations": conversations, "tokens trained": trained}


def _packed(pieces: list[packing.Piece], contract: Contract, padding: int) -> tuple[Blocks, dict[str, int]]:
    if not contract.packing:
        return packing.pad(pieces, contract.sequence_length, padding)
    if all(piece.divisible for piece in pieces):
        return packing.stream(pieces, contract.sequence_length)
    return packing.whole(pieces, contract.sequence_length, padding)


def split(blocks: Blocks, counts: Mapping[str, int] | None = None) -> tuple[Blocks, Blocks]:
    """Training and held-out sequences: the last 5 % (at least one) are never trained on; ``counts`` tell why there are
    few.

    Raises ToolkitError for less than two.
    """
    count, length = blocks.tokens.shape
    if count < 2:
        dropped = (counts or {}).get("dropped", 0)
        said = (
            f" ({dropped} of {(counts or {})['documents']} documents have nothing to learn in {length} tokens:"
            " no text, no answer of the assistant, or a prompt that fills them)"
            if dropped
            else ""
        )
        raise ToolkitError(
            f"the dataset fills {count} sequence(s) of {length} tokens{said}; training and evaluation need 2",
            remedy="give more text" + (" or a larger sequence_length" if dropped else " or a smaller sequence_length"),
        )
    first = count - max(1, round(HELD_OUT * count))
    return blocks.rows(0, first), blocks.rows(first, count)


class Sequences:
    """A map-style dataset of ``samples`` sequences: epoch after epoch, each in its own seeded permutation.

    Batches of ``global_batch`` that are ``skipped`` are left out, and the next ones read in their place.
    """

    def __init__(
        self,
        blocks: Blocks,
        samples: int,
        seed: int,
        shuffle: bool = True,
        global_batch: int = 1,
        skipped: Sequence[int] = (),
    ) -> None:
        self.blocks, self.samples, self.seed, self.shuffle = blocks, samples, seed, shuffle
        self.global_batch, self.skipped = global_batch, skipped
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.samples

    def block_of(self, index: int) -> int:
        """Which block the ``index``-th sequence of the run is."""
        count = len(self.blocks.tokens)
        epoch, position = divmod(sample_of(index, self.global_batch, self.skipped), count)
        if not self.shuffle:
            return position
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, epoch]).permutation(count)
            self._epoch = epoch
        return int(self._order[position])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        block = self.block_of(index)
        return {
            "input_ids": self.blocks.tokens[block],
            "labels": self.blocks.labels[block],
            "position_ids": self.blocks.positions[block],
        }


def documents_in(blocks: Blocks) -> int:
    """Documents, or pieces of them; padding is none."""
    width = np.arange(blocks.tokens.shape[1])
    return int(((blocks.positions == 0) & (width < blocks.lengths[:, None])).sum())


def cache_folder(output_dir: Path, contract: Contract) -> Path:
    """Where the blocks of this dataset, tokenizer and length lie; a changed local file is another dataset."""
    path = local_file(contract.dataset)
    files = files_of(path) if path is not None and is_there(path) else []
    folder = expanded(contract.tokenizer or contract.model)
    if is_there(folder) and folder.is_dir():
        files = [*files, *sorted(each for name in TOKENIZER for each in folder.glob(name))]
    stamp = " ".join(f"{each.name} {each.stat().st_size} {each.stat().st_mtime_ns}" for each in files)
    parts = (
        FORMAT,
        contract.dataset,
        stamp,
        contract.tokenizer or contract.model,
        contract.sequence_length,
        contract.packing,
        contract.chat_template,
        contract.completion_only,
    )
    return output_dir / "data" / hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def store(arrays: NamedTuple, counts: dict[str, int], folder: Path) -> None:
    """Write the arrays so that either all of the folder is there or none of it, also after a power cut.

    Another process may write the same at the same time: what is there first stays, since both are equal.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}.*"):  # of processes that were killed
        if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        temporary.chmod(folder.parent.stat().st_mode)  # as others may read the run's folder
        for name, part in arrays._asdict().items():
            np.save(temporary / f"{name}.npy", part)
            durable.sync(temporary / f"{name}.npy")
        durable.create(temporary / "counts.json", json.dumps(counts).encode())
        with contextlib.suppress(OSError):  # it is there by now
            temporary.rename(folder)
    except OSError as error:
        raise ToolkitError(
            f"cannot write the tokens to {folder}: {error.strerror or error}",
            remedy="make room, or choose another --output-dir",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if not (folder / "counts.json").is_file():
        raise ToolkitError(f"{folder} is not what this program writes", remedy="remove it")


def counts(folder: Path) -> dict[str, int]:
    """What :func:`build` counted."""
    try:
        found = json.loads((folder / "counts.json").read_text())
    except (OSError, ValueError) as error:
        raise ToolkitError(f"cannot read {folder / 'counts.json'}: {error}", remedy=f"remove {folder}") from error
    return found  # type: ignore[no-any-return]


def load(folder: Path) -> Blocks:
    """The stored blocks."""
    return load_as(Blocks, folder)


def load_as(kind: type[Arrays], folder: Path) -> Arrays:
    """What :func:`store` wrote, mapped: the ranks of a node share one copy in the page cache."""
    try:
        return kind(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in kind._fields))
    except (OSError, ValueError, EOFError) as error:  # numpy's of torn files
        raise ToolkitError(
            f"cannot read the tokens that rank 0 wrote to {folder}: {error}",
            remedy=f"the output directory must be on storage that all nodes share; remove {folder} if it is damaged",
        ) from error
