"""Documents to pieces by several processes: the same pieces, in the same order, as by one.

The first rows are done here, and tell how fast one process is. If there are more, other processes take chunks of
rows, and their results are taken back in the order of the dataset: neither pieces nor errors depend on how many
processes there are. At most a few chunks for each process are in memory, besides what is done.

The other processes (:mod:`recipes.processes`) are given the tokenizer as it is, with the chat template that was
settled.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from recipes.finetune import chat
from recipes.finetune.chat import Encoded
from recipes.finetune.documents import Document, require_text
from recipes.finetune.packing import Piece
from recipes.processes import Crew, Killed
from toolkit.errors import Problem, ToolkitError

FIRST = 1024  # rows that are done here before other processes are started
CHUNK = 128  # rows in a message
AHEAD = 4  # chunks on their way for each process
MOST = 64  # processes, where nobody says how many: reading the rows is one process's work


class Pace(NamedTuple):
    """Rows that were tokenised, and the seconds that one process took for them."""

    rows: int
    seconds: float


class Chunk(NamedTuple):
    """Rows ``first`` to ``first + len(documents) - 1`` of the dataset, counted from 1."""

    first: int
    documents: list[Document]


def processes() -> int:
    """Processors that this process may use, at most ``MOST``."""
    return min(MOST, len(os.sched_getaffinity(0)))


def encode(document: Document, tokenizer: Any) -> Encoded:
    """Tokens of a text or of a prompt with its completion, and which enter the loss; the end token is the last.

    The begin token comes first where the tokenizer is one that writes it.
    """
    if document.messages:
        raise ToolkitError("the dataset holds conversations, text was expected", remedy="give rows with text")
    tokens: list[int] = [tokenizer.bos_token_id] if chat.writes_begin(tokenizer) else []
    trained = [False] * len(tokens)
    for segment in document.segments:
        piece = tokenizer.encode(segment.text, add_special_tokens=False)
        tokens += piece
        trained += [segment.trained] * len(piece)
    if not tokens or tokens[-1] != tokenizer.eos_token_id or not trained[-1]:  # an end in a prompt ends no answer
        tokens.append(tokenizer.eos_token_id)
        trained.append(True)
    return tokens, trained


NOTHING = Piece(np.empty(0, np.int32), np.empty(0, bool), True)  # of a document: counted, and in no sequence


def encode_all(documents: Iterable[Document], tokenizer: Any, completion_only: bool, first: int = 1) -> Iterator[Piece]:
    """Every document as one sequence, or, of some conversations, as one for each answer; NOTHING where there is no text
    or nothing to learn: a text of no characters would teach that texts end at once.

    ``first`` is the number of the first document's row. Raises ToolkitError for a row that cannot be written.
    """
    for number, document in enumerate(documents, start=first):
        try:
            several = list(_encoded(document, tokenizer, completion_only))
            if not several:
                yield NOTHING
            for tokens, trained in several:
                flags = np.asarray(trained, bool)
                flags[0] = False  # nothing before it predicts it
                divisible = len(document.segments) == 1
                yield Piece(np.asarray(tokens, np.int32), flags, divisible)
        except ToolkitError as error:
            raise ToolkitError(
                *(Problem(f"row {number} of the dataset: {each.message}", each.remedy) for each in error.problems)
            ) from error


def _encoded(document: Document, tokenizer: Any, completion_only: bool) -> Iterable[Encoded]:
    if document.messages:
        return chat.conversation(document.messages, tokenizer, completion_only)
    for segment in document.segments:
        require_text(segment.text, "the text" if segment.trained else "the prompt")
    return [encode(document, tokenizer)] if any(segment.text for segment in document.segments) else []


def pieces(
    documents: Iterable[Document],
    tokenizer: Any,
    completion_only: bool,
    workers: int,
    paced: Callable[[Pace], None] = lambda pace: None,
) -> Iterator[Piece]:
    """:func:`encode_all` by so many processes; ``paced`` is told how long the first rows took, if there are more."""
    rows = iter(documents)
    since, here = time.perf_counter(), list(islice(rows, FIRST))
    yield from list(encode_all(here, tokenizer, completion_only))
    following = next(rows, None)
    if following is None:
        return
    paced(Pace(len(here), time.perf_counter() - since))
    left = _chunks(rows, following, FIRST + 1)
    if workers > 1:
        yield from _by_others(left, tokenizer, completion_only, workers)
        return
    for chunk in left:
        yield from encode_all(chunk.documents, tokenizer, completion_only, chunk.first)


def _chunks(rows: Iterator[Document], following: Document, first: int) -> Iterator[Chunk]:
    """Rows in chunks. Where reading fails, the rows before come first, and then the error."""
    documents = [following]
    try:
        for document in rows:
            if len(documents) == CHUNK:
                yield Chunk(first, documents)
                first, documents = first + CHUNK, []
            documents.append(document)
    except ToolkitError:
        yield Chunk(first, documents)
        raise
    yield Chunk(first, documents)


def _by_others(chunks: Iterator[Chunk], tokenizer: Any, completion_only: bool, workers: int) -> Iterator[Piece]:
    """Where one of them is killed (by the kernel, when memory runs out) half as many do its chunks and what is left."""
    given, unread = pickle.dumps((tokenizer, completion_only)), list[ToolkitError]()
    on_their_way: deque[Chunk] = deque()
    done: dict[int, tuple[list[Piece], tuple[Problem, ...]]] = {}  # by the chunk's first row
    killed_at = 0
    while True:
        try:
            with Crew(workers, _encode, _begin, given) as crew:
                for chunk in on_their_way:
                    if chunk.first not in done:
                        crew.send(chunk.first, chunk)
                while True:
                    try:
                        for chunk in islice(chunks, 0 if unread else max(0, workers * AHEAD - len(on_their_way))):
                            on_their_way.append(chunk)
                            crew.send(chunk.first, chunk)
                    except ToolkitError as error:
                        unread.append(error)
                    if not on_their_way:
                        break
                    while on_their_way[0].first not in done:
                        first, answer = crew.receive()
                        done[first] = answer
                    found, problems = done.pop(on_their_way.popleft().first)
                    yield from found
                    if problems:
                        raise ToolkitError(*problems)
            break
        except Killed as error:
            if workers == 1 and killed_at == on_their_way[0].first:
                raise ToolkitError(
                    f"the process that tokenises is killed each time, near row {killed_at} of the dataset",
                    remedy="if dmesg tells of memory, use a machine with more; else look at that row",
                ) from error
            workers, killed_at = max(1, workers // 2), on_their_way[0].first
            print(f"warning: a process that tokenises was killed; going on with {workers}", flush=True)
    if unread:
        raise unread[0]


_worker: list[Any] = []  # what a worker process is given once: tokenizer, completion_only


def _begin(given: bytes) -> None:
    _worker.extend(pickle.loads(given))


def _encode(chunk: Chunk) -> tuple[list[Piece], tuple[Problem, ...]]:
    """The pieces of a chunk, and the problems of the row that ends it; exceptions do not travel whole."""
    tokenizer, completion_only = _worker
    found: list[Piece] = []
    try:
        for piece in encode_all(chunk.documents, tokenizer, completion_only, chunk.first):
            found.append(piece)
    except ToolkitError as error:
        return found, error.problems
    return found, ()
