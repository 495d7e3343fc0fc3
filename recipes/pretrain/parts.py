"""Parts of a corpus as tokens, each by one worker, which stay when the program does not.

A part is finished where its counts are there, which are written last, and its files are as long as they say: after a
power cut a file may be shorter than what was written.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from recipes.pretrain import sources
from recipes.pretrain.sources import Part
from recipes.pretrain.tokens import HELD_OUT, encode, load_tokenizer
from recipes.processes import Crew, Killed
from toolkit.errors import Problem, ToolkitError
from toolkit.runtime import durable
from toolkit.runtime.lease import Lease

BATCH = 256  # texts per call of the tokenizer


class Job(msgspec.Struct, frozen=True):
    """What decides the result; recorded with the parts, so that no others are taken for them."""

    dataset: str
    tokenizer: str
    tokenizer_sha256: str
    text_column: str
    held_out: float
    vocabulary: int
    parts: list[Part]


class Counted(msgspec.Struct, frozen=True):
    """What a finished part holds."""

    documents: int = 0
    tokens: int = 0
    held_out_documents: int = 0
    held_out_tokens: int = 0
    largest: int = 0


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two preparations of one corpus at a time would write into each other's parts."""
    lease = Lease(folder, environment={})  # two in one Slurm job are two
    try:
        lease.__enter__()
    except ToolkitError as error:
        raise ToolkitError(
            *(Problem(each.message, "wait for it, or give another --out") for each in error.problems)
        ) from error
    try:
        yield
    finally:
        lease.__exit__(None, None, None)


def claim(folder: Path, job: Job, force: bool) -> None:
    """Go on with the parts of this job, or begin; raises ToolkitError for those of another one.

    Of a job whose files have been corrected, the parts of the other files stay.
    """
    record, text = folder / "job.json", msgspec.json.encode(job)
    counts = [] if force else sorted(folder.glob("[0-9]*.json"))
    if force:
        for path in folder.iterdir():
            if not path.name.startswith("."):  # the lease
                path.unlink()
    elif counts and (not record.is_file() or record.read_bytes() != text):
        before = _before(record)
        if before is None or not _is_corrected(before, job):
            raise ToolkitError(
                f"{folder} holds parts of another input, tokenizer or other options",
                remedy="finish that preparation with its own options, or drop its parts with --force",
            )
        same = {at for at, (old, new) in enumerate(zip(before.parts, job.parts, strict=False)) if old == new}
        for path in counts:
            if int(path.stem) not in same:
                path.unlink()
    durable.replace(record, text)


def _before(record: Path) -> Job | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=Job)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_corrected(before: Job, job: Job) -> bool:
    """The same options and files, of which some have been changed."""
    plain = msgspec.structs.replace(before, parts=job.parts) == job
    stamps, now = ({part.path: part.stamp for part in each.parts} for each in (before, job))
    return plain and stamps.keys() == now.keys() and stamps != now


def is_finished(folder: Path, job: Job, number: int) -> bool:
    """Whether a part has its counts, and its files as much as they say: after a power cut they may be shorter."""
    try:
        counted = msgspec.json.decode((folder / f"{number:06d}.json").read_bytes(), type=Counted)
        sizes = [
            (file_of(folder, number, which, ending).stat().st_size, count * np.dtype(kind).itemsize)
            for which, documents, tokens in (
                ("", counted.documents, counted.tokens),
                (HELD_OUT, counted.held_out_documents, counted.held_out_tokens),
            )
            for ending, count, kind in (("tokens", tokens, dtype_of(job.vocabulary)), ("lengths", documents, np.int32))
        ]
    except (OSError, msgspec.MsgspecError):
        return False
    return all(size == expected for size, expected in sizes)


def count(folder: Path, job: Job, workers: int) -> Iterator[Counted]:
    """Tokenise what is not finished, in processes of their own, and give the counts of all parts in order."""
    missing = [number for number in range(len(job.parts)) if not is_finished(folder, job, number)]
    if done := len(job.parts) - len(missing):
        print(f"{done} of {len(job.parts)} parts were finished before", flush=True)
    processes = min(workers, len(missing))
    if processes:
        problem = ""
        try:
            with Crew(processes, _tokenise, _begin, str(folder)) as crew:
                left = iter(missing)
                for first in islice(left, processes):
                    crew.send(first, first)
                for number in range(done + 1, len(job.parts) + 1):
                    _, (at, problem) = crew.receive()
                    if problem:
                        break
                    for following in islice(left, 1):
                        crew.send(following, following)
                    print(f"part {number}/{len(job.parts)} finished ({job.parts[at].path})", flush=True)
        except Killed as error:
            raise ToolkitError(
                "a process that tokenises was killed",
                remedy="the parts that are finished stay: start again, with fewer --workers if memory ran out (dmesg)",
            ) from error
        if problem:
            raise ToolkitError(problem, remedy="correct the input; the parts that are finished stay")
    for number in range(len(job.parts)):
        yield msgspec.json.decode((folder / f"{number:06d}.json").read_bytes(), type=Counted)


_worker: dict[str, Any] = {}  # what a worker process loads once


def _begin(folder: str) -> None:
    _worker.update(folder=Path(folder))


def _tokenise(number: int) -> tuple[int, str]:
    """One part to tokens and lengths; its counts are written last. A problem comes back as a sentence."""
    try:
        if "job" not in _worker:  # here and not before: what is wrong comes back as a sentence
            record = (_worker["folder"] / "job.json").read_bytes()
            job = msgspec.json.decode(record, type=Job)
            _worker.update(tokenizer=load_tokenizer(job.tokenizer), job=job)
        _writefile_of(_worker["folder"], _worker["job"], _worker["tokenizer"], number)
    except ToolkitError as error:
        return number, "; ".join(one.message for one in error.problems)
    except OSError as error:
        return number, f"cannot write {_worker['folder']}: {error.strerror or error}"
    return number, ""


def _writefile_of(folder: Path, job: Job, tokenizer: Any, number: int) -> None:
    dtype, largest = dtype_of(job.vocabulary), 0
    lengths: dict[str, list[int]] = {"": [], HELD_OUT: []}
    with contextlib.ExitStack() as stack:
        files = {which: stack.enter_context(file_of(folder, number, which).open("wb")) for which in lengths}
        found = sources.texts(job.parts[number], job.text_column)
        while batch := list(islice(found, BATCH)):
            for text, row in zip(batch, encode(batch, tokenizer), strict=True):
                which = HELD_OUT if is_held_out(text, job.held_out) else ""
                files[which].write(np.asarray(row, dtype).tobytes())
                lengths[which].append(len(row))
                largest = max(largest, max(row))
    for which, found_lengths in lengths.items():
        file_of(folder, number, which, "lengths").write_bytes(np.asarray(found_lengths, np.int32).tobytes())
    train, held = lengths[""], lengths[HELD_OUT]
    counted = Counted(len(train), sum(train), len(held), sum(held), largest)
    durable.replace(folder / f"{number:06d}.json", msgspec.json.encode(counted))


def is_held_out(text: str, share: float) -> bool:
    """Whether the hash of a text is in this share of all hashes."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") < share * 2.0**64


def file_of(folder: Path, number: int, which: str, ending: str = "tokens") -> Path:
    """The tokens of a part, or the lengths of its documents, to train on or held out."""
    return folder / f"{number:06d}{which}.{ending}"


def dtype_of(vocabulary: int) -> type[np.number]:
    """Two bytes per token where they suffice: ``DType.optimaldtype_of`` of the library."""
    return np.uint16 if vocabulary < 65500 else np.int32
