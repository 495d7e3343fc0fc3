"""Tokenise a corpus once, in parallel, into files that every rank maps.

    python -m recipes.pretrain.prepare --dataset corpus.jsonl --tokenizer NAME --out data/corpus --workers 16

Each worker reads and tokenises whole parts of the input by itself. A part that is finished stays: started again after
a crash, the program goes on with the others, and refuses to where input, tokenizer or options have changed. The result
does not depend on the number of workers. A document is held out by the hash of its text, so that copies of it
are held out with it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import time
import warnings
from pathlib import Path

import msgspec
import numpy as np

from recipes import program
from recipes.options import REQUIRED, Option, Parser, share, text, whole
from recipes.options import number as amount
from recipes.pretrain import sources
from recipes.pretrain.parts import Counted, Job, alone, claim, count, dtype_of, file_of
from recipes.pretrain.tokens import HELD_OUT, Manifest, beside, encode, fingerprint, load_tokenizer
from toolkit.errors import Problems, ToolkitError
from toolkit.runtime import durable

MOST_PART_MIB = 1_000_000
RESULTS = (".bin", ".idx", f"{HELD_OUT}.bin", f"{HELD_OUT}.idx", ".json")


TABLE = (
    Option("--dataset", text, REQUIRED,
           "sample, a .jsonl, .jsonl.gz, .parquet or text file, a folder of them, or a hub name", "DATA"),
    Option("--tokenizer", text, REQUIRED, "byte, a hub name or a path", "NAME"),
    Option("--out", text, REQUIRED, "prefix of the files to write", "PREFIX"),
    Option("--workers", whole(1, 4096), os.cpu_count() or 1, "processes (default: one per core)", "N"),
    Option("--text-column", text, "text", "the column with the text (default text)", "NAME"),
    Option("--held-out", share(), 0.005, "share of documents for evaluation (0.005)", "SHARE"),
    Option("--part-mib", amount(0.0, MOST_PART_MIB, "64"), 64.0, "input per part, in MiB (default 64)", "MIB"),
    Option("--force", None, False, "replace earlier results and parts"),
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the program; problems with the inputs go to stderr as sentences."""
    parser = Parser("recipes.pretrain.prepare", (__doc__ or "").split("\n")[0], TABLE)
    return program.told(_run, parser.parse_args(argv))


def _run(options: argparse.Namespace) -> int:
    with Problems() as problems:
        if Path(options.out).name in ("", "."):
            problems.add(
                f"--out is {options.out!r}", "give a folder and the beginning of the files' names: data/corpus"
            )
        folder = beside(options.out, ".parts")
        if (there := _results(options.out)) and not options.force and not _is_torn(options.out, folder):
            problems.add(
                f"{', '.join(there)} {'exists' if len(there) == 1 else 'exist'}", "give another --out, or --force"
            )
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    tokenizer = load_tokenizer(options.tokenizer)
    encode([], tokenizer)  # without an end token nothing can be prepared
    job = Job(
        dataset=options.dataset,
        tokenizer=options.tokenizer,
        tokenizer_sha256=fingerprint(tokenizer),
        text_column=options.text_column,
        held_out=options.held_out,
        vocabulary=len(tokenizer),
        parts=sources.parts_of(options.dataset, max(1, int(options.part_mib * 2**20))),
    )
    started = time.perf_counter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            if not options.force and beside(options.out, ".json").exists():
                raise ToolkitError(f"{options.out} was made by another process in this moment", remedy="use it")
            claim(folder, job, options.force)
            counted = list(count(folder, job, options.workers))
            manifest = _merge(job, folder, options.out, counted, tokenizer.eos_token_id)
    except OSError as error:
        raise ToolkitError(
            f"cannot write {options.out}: {error.strerror or error}",
            remedy="make room, or choose another --out; the parts that are finished stay",
        ) from error
    shutil.rmtree(folder, ignore_errors=True)
    seconds = time.perf_counter() - started
    print(
        f"{options.out}: {manifest.documents:,} documents, {manifest.tokens:,} tokens; held out"
        f" {manifest.held_out_documents:,} documents, {manifest.held_out_tokens:,} tokens; {seconds:.1f} s"
    )
    return 0


def _results(out: str) -> list[str]:
    return [str(path) for ending in RESULTS if (path := beside(out, ending)).exists()]


def _is_torn(out: str, folder: Path) -> bool:
    """Whether what is there is of a preparation that ended while it joined its parts, which are still there."""
    return (folder / "job.json").is_file() and not beside(out, ".json").exists()


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
    for ending in RESULTS[:-1]:
        if (path := beside(out, ending)).exists():
            durable.sync(path)
    durable.replace(beside(out, ".json"), msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def _join(job: Job, folder: Path, out: str, which: str, counted: list[Counted]) -> str:
    """One indexed file of all parts, written by the library's builder; the hash of its tokens."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")  # Apex is not needed here
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    target = beside(out, f"{which}.bin")
    builder = IndexedDatasetBuilder(str(target), dtype=dtype_of(job.vocabulary))
    for number in range(len(counted)):
        # as its add_index does, from parts that could be written without importing torch in every worker
        with file_of(folder, number, which).open("rb") as file:
            shutil.copyfileobj(file, builder.data_file)
        first = len(builder.sequence_lengths)
        builder.sequence_lengths.extend(np.fromfile(file_of(folder, number, which, "lengths"), np.int32))
        builder.document_indices.extend(range(first + 1, len(builder.sequence_lengths) + 1))
    builder.finalize(str(beside(out, f"{which}.idx")))
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    program.leave(main())
