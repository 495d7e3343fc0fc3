"""Tokenise a corpus once, in parallel, into files that every rank maps.

    python -m recipes.pretrain.prepare --dataset corpus.jsonl --tokenizer NAME --out data/corpus --workers 16

Each worker reads and tokenises whole parts of the input by itself. A part that is finished stays: started again after
a crash, the program goes on with the others, and refuses to where input, tokenizer or options have changed. The result
does not depend on the number of workers. A document is held out by the hash of its text, so that copies of it
are held out with it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from recipes import program
from recipes.pretrain import sources
from recipes.pretrain.sources import Part
from recipes.pretrain.tokens import HELD_OUT, Manifest, beside, encode, fingerprint, load_tokenizer
from toolkit.errors import Problems, ToolkitError
from toolkit.runtime import durable

BATCH = 256  # texts per call of the tokenizer
RESULTS = (".bin", ".idx", f"{HELD_OUT}.bin", f"{HELD_OUT}.idx", ".json")


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


def main(argv: list[str] | None = None) -> int:
    """Run the program; problems with the inputs go to stderr as sentences."""
    parser = argparse.ArgumentParser(prog="recipes.pretrain.prepare", description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", required=True, help="sample, a .jsonl, .jsonl.gz, .parquet or text file, a folder"
                        " of them, or a hub name")  # fmt: skip
    parser.add_argument("--tokenizer", required=True, help="byte, a hub name or a path")
    parser.add_argument("--out", required=True, help="prefix of the files to write")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--text-column", default="text", help="the column with the text (default text)")
    parser.add_argument("--held-out", type=float, default=0.005, help="share of documents for evaluation (0.005)")
    parser.add_argument("--part-mib", type=float, default=64.0, help="input per part, in MiB (default 64)")
    parser.add_argument("--force", action="store_true", help="replace earlier results and parts")
    return program.told(_run, parser.parse_args(argv))


def _run(options: argparse.Namespace) -> int:
    with Problems() as problems:
        if options.workers < 1:
            problems.add(f"--workers is {options.workers}", "it must be 1 or more")
        if not 0.0 <= options.held_out < 1.0:
            problems.add(f"--held-out is {options.held_out}", "it must be at least 0 and less than 1")
        if not options.part_mib > 0:
            problems.add(f"--part-mib is {options.part_mib}", "it must be more than 0")
        there = [str(path) for ending in RESULTS if (path := beside(options.out, ending)).exists()]
        if there and not options.force:
            problems.add(f"{', '.join(there)} exists", "give another --out, or --force")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    tokenizer = load_tokenizer(options.tokenizer)
    job = Job(
        dataset=options.dataset,
        tokenizer=options.tokenizer,
        tokenizer_sha256=fingerprint(tokenizer),
        text_column=options.text_column,
        held_out=options.held_out,
        vocabulary=len(tokenizer),
        parts=sources.parts_of(options.dataset, max(1, int(options.part_mib * 2**20))),
    )
    folder = beside(options.out, ".parts")
    _claim(folder, job, options.force)
    started = time.perf_counter()
    counted = list(_count(folder, job, options.workers))
    manifest = _merge(job, folder, options.out, counted, tokenizer.eos_token_id)
    shutil.rmtree(folder)
    seconds = time.perf_counter() - started
    print(
        f"{options.out}: {manifest.documents:,} documents, {manifest.tokens:,} tokens; held out"
        f" {manifest.held_out_documents:,} documents, {manifest.held_out_tokens:,} tokens; {seconds:.1f} s"
    )
    return 0


def _claim(folder: Path, job: Job, force: bool) -> None:
    """Go on with the parts of this very job, or begin; raises ToolkitError for those of another one."""
    record, text = folder / "job.json", msgspec.json.encode(job)
    try:
        if force:
            shutil.rmtree(folder, ignore_errors=True)
        if record.is_file() and record.read_bytes() != text:
            raise ToolkitError(
                f"{folder} holds parts of another input, tokenizer or other options",
                remedy="finish that preparation with its own options, or drop its parts with --force",
            )
        folder.mkdir(parents=True, exist_ok=True)
        durable.replace(record, text)
    except OSError as error:
        raise ToolkitError(f"cannot write {folder}: {error}", remedy="choose another --out") from error


def _count(folder: Path, job: Job, workers: int) -> Iterator[Counted]:
    """Tokenise what is not finished, in processes of their own, and give the counts of all parts in order."""
    missing = [number for number in range(len(job.parts)) if not (folder / f"{number:06d}.json").is_file()]
    if done := len(job.parts) - len(missing):
        print(f"{done} of {len(job.parts)} parts were finished before", flush=True)
    processes = min(workers, len(missing))
    if processes:
        spawn = multiprocessing.get_context("spawn")  # a fork would copy the tokenizer's locks
        problem = ""
        with spawn.Pool(processes, _begin, (str(folder),)) as pool:
            for number, (at, problem) in enumerate(pool.imap_unordered(_tokenise, missing), start=done + 1):
                if problem:
                    break
                print(f"part {number}/{len(job.parts)} finished ({job.parts[at].path})", flush=True)
        if problem:
            raise ToolkitError(problem, remedy="correct the input; the parts that are finished stay")
    for number in range(len(job.parts)):
        yield msgspec.json.decode((folder / f"{number:06d}.json").read_bytes(), type=Counted)


_worker: dict[str, Any] = {}  # what a worker process loads once


def _begin(folder: str) -> None:
    job = msgspec.json.decode((Path(folder) / "job.json").read_bytes(), type=Job)
    _worker.update(folder=Path(folder), job=job, tokenizer=load_tokenizer(job.tokenizer))


def _tokenise(number: int) -> tuple[int, str]:
    """One part to tokens and lengths; its counts are written last. A problem comes back as a sentence."""
    folder, job, tokenizer = _worker["folder"], _worker["job"], _worker["tokenizer"]
    dtype, largest = _dtype(job.vocabulary), 0
    lengths: dict[str, list[int]] = {"": [], HELD_OUT: []}
    with contextlib.ExitStack() as stack:
        files = {which: stack.enter_context(_part(folder, number, which).open("wb")) for which in lengths}
        try:
            found = sources.texts(job.parts[number], job.text_column)
            while batch := list(islice(found, BATCH)):
                for text, row in zip(batch, encode(batch, tokenizer), strict=True):
                    which = HELD_OUT if _is_held_out(text, job.held_out) else ""
                    np.asarray(row, dtype).tofile(files[which])
                    lengths[which].append(len(row))
                    largest = max(largest, max(row))
        except ToolkitError as error:
            return number, "; ".join(one.message for one in error.problems)
    for which, found_lengths in lengths.items():
        np.asarray(found_lengths, np.int32).tofile(_part(folder, number, which, "lengths"))
    train, held = lengths[""], lengths[HELD_OUT]
    counted = Counted(len(train), sum(train), len(held), sum(held), largest)
    durable.replace(folder / f"{number:06d}.json", msgspec.json.encode(counted))
    return number, ""


def _is_held_out(text: str, share: float) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") < share * 2.0**64


def _merge(job: Job, folder: Path, out: str, counted: list[Counted], end: int) -> Manifest:
    """The parts in order as one file each, and the manifest last: without it the files are not taken."""
    totals = {name: sum(getattr(one, name) for one in counted) for name in Counted.__struct_fields__}
    if not totals["tokens"]:
        raise ToolkitError(
            f"{job.dataset} leaves no document to train on ({totals['held_out_documents']} are held out)",
            remedy="give more text, or --held-out 0",
        )
    for ending in reversed(RESULTS):
        beside(out, ending).unlink(missing_ok=True)
    hashes = {"sha256": _join(job, folder, out, "", counted)}
    if totals["held_out_documents"]:
        hashes["held_out_sha256"] = _join(job, folder, out, HELD_OUT, counted)
    manifest = Manifest(
        dataset=job.dataset,
        tokenizer=job.tokenizer,
        tokenizer_sha256=job.tokenizer_sha256,
        end=end,
        **totals | {"largest": max(one.largest for one in counted)},
        **hashes,
    )
    durable.replace(beside(out, ".json"), msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def _join(job: Job, folder: Path, out: str, which: str, counted: list[Counted]) -> str:
    """One indexed file of all parts, written by the library's builder; the hash of its tokens."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")  # Apex is not needed here
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    target = beside(out, f"{which}.bin")
    builder = IndexedDatasetBuilder(str(target), dtype=_dtype(job.vocabulary))
    for number in range(len(counted)):
        # as its add_index does, from parts that could be written without importing torch in every worker
        with _part(folder, number, which).open("rb") as file:
            shutil.copyfileobj(file, builder.data_file)
        first = len(builder.sequence_lengths)
        builder.sequence_lengths.extend(np.fromfile(_part(folder, number, which, "lengths"), np.int32))
        builder.document_indices.extend(range(first + 1, len(builder.sequence_lengths) + 1))
    builder.finalize(str(beside(out, f"{which}.idx")))
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _part(folder: Path, number: int, which: str, ending: str = "tokens") -> Path:
    return folder / f"{number:06d}{which}.{ending}"


def _dtype(vocabulary: int) -> type[np.number]:
    """Two bytes per token where they suffice: ``DType.optimal_dtype`` of the library."""
    return np.uint16 if vocabulary < 65500 else np.int32


if __name__ == "__main__":
    program.leave(main())
