"""Documents to sequences of equal width: cut from one stream, put together whole, or one in each, padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

IGNORED = -100  # the label that the loss leaves out
OPEN = 128  # sequences that are filled at a time


class Piece(NamedTuple):
    """A document or a part: its tokens, which are learnt (never the first), and whether it may be cut (text may)."""

    tokens: np.ndarray
    trained: np.ndarray
    divisible: bool = False


class Blocks(NamedTuple):
    """``n`` sequences of equal width ``L``.

    ``labels`` are the tokens, or ``IGNORED`` where the loss does not look: prompts, padding, and the first
    token of every document, which nothing before it predicts. ``positions`` count from 0 in every document,
    so they say where documents begin; padding is a document of its own. ``lengths [n]`` is how much of a
    sequence is not padding.
    """

    tokens: np.ndarray
    labels: np.ndarray
    positions: np.ndarray
    lengths: np.ndarray

    def rows(self, first: int, last: int) -> Blocks:
        """The sequences ``first`` to ``last - 1``."""
        return Blocks(*(part[first:last] for part in self))


def stream(documents: Sequence[Piece], length: int) -> tuple[Blocks, dict[str, int]]:
    """Documents joined into one stream and cut every ``length`` tokens: for text, of which nothing is lost by a cut.

    The rest of less than one sequence is left out. A document that is cut goes on in the next sequence with
    positions from 0 again, and without its beginning in sight.
    """
    usable = [piece for piece in documents if piece.trained.any()]
    tokens = _joined([piece.tokens for piece in usable], np.int32)
    trained = _joined([piece.trained for piece in usable], bool)
    since = _joined([np.arange(len(piece.tokens)) for piece in usable], np.int64)  # place in its document
    count = len(tokens) // length
    shape, kept = (count, length), count * length
    # a piece that began before this sequence counts from the cut, those after it from their own beginning
    positions = np.minimum(since[:kept].reshape(shape), np.arange(length)).astype(np.int32)
    learnt = trained[:kept].reshape(shape) & (positions > 0)
    rows = tokens[:kept].reshape(shape)
    blocks = Blocks(rows, np.where(learnt, rows, np.int32(IGNORED)), positions, np.full(count, length, np.int32))
    some = learnt.any(axis=1)  # a window without a trained token would divide by 0
    if not some.all():
        blocks = Blocks(*(part[some] for part in blocks))
    counts = {"documents": len(documents), "dropped": len(documents) - len(usable)}
    return blocks, counts | {"tokens left out": len(tokens) - blocks.tokens.size}


def whole(documents: Sequence[Piece], length: int, padding: int) -> tuple[Blocks, dict[str, int]]:
    """Several whole documents in a sequence, for documents whose prompt must stay before its answer.

    Best fit in the order of the dataset: a document goes into the fullest of the sequences being filled that
    has room for it. Documents longer than a sequence are cut; those with nothing to learn left are dropped.
    """
    usable, counts = _usable(documents, length)
    bins: list[list[Piece]] = []
    room: dict[int, int] = {}  # of the sequences being filled
    for piece in usable:
        size = len(piece.tokens)
        fitting = [at for at, left in room.items() if left >= size]
        if fitting:
            at = min(fitting, key=lambda each: (room[each], each))
        else:
            if len(room) == OPEN:
                del room[min(room, key=lambda each: (room[each], each))]
            at = len(bins)
            bins.append([])
            room[at] = length
        bins[at].append(piece)
        room[at] -= size
        if not room[at]:
            del room[at]
    return _filled(bins, length, padding), counts


def pad(documents: Sequence[Piece], length: int, padding: int) -> tuple[Blocks, dict[str, int]]:
    """One document per sequence, cut at ``length`` and filled up with padding that the loss does not see."""
    usable, counts = _usable(documents, length)
    return _filled([[piece] for piece in usable], length, padding), counts


def _usable(documents: Sequence[Piece], length: int) -> tuple[list[Piece], dict[str, int]]:
    """What fits: of a text all parts, of a prompt and its answer the first part, where it has something to learn."""
    usable = []
    cut = dropped = 0
    for tokens, trained, divisible in documents:
        ends = range(length, len(tokens) + length, length) if divisible else [length]
        parts = [(tokens[end - length : end], trained[end - length : end].copy()) for end in ends]
        for _, flags in parts:
            flags[0] = False
        kept = [Piece(part, flags, divisible) for part, flags in parts if flags.any()]
        cut += len(tokens) > length
        dropped += not kept
        usable += kept
    return usable, {"documents": len(documents), "cut": cut, "dropped": dropped}


def _filled(bins: Sequence[Sequence[Piece]], length: int, padding: int) -> Blocks:
    shape = (len(bins), length)
    blocks = Blocks(
        np.full(shape, padding, np.int32),
        np.full(shape, IGNORED, np.int32),
        np.zeros(shape, np.int32),
        np.zeros(len(bins), np.int32),
    )
    for row, pieces in enumerate(bins):
        at = 0
        for tokens, trained, _ in pieces:
            end = at + len(tokens)
            blocks.tokens[row, at:end] = tokens
            blocks.labels[row, at:end] = np.where(trained, tokens, IGNORED)
            blocks.positions[row, at:end] = np.arange(end - at)
            at = end
        blocks.positions[row, at:] = np.arange(length - at)
        blocks.lengths[row] = at
    return blocks


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts).astype(kind, copy=False) if parts else np.empty(0, kind)
