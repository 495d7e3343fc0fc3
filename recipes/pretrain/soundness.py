"""Whether indexed files are as long and as consistent as their manifest says, looked at before a run maps them.

The library maps whatever lies there: of files that are too short it fails in the step that reads beyond the end, and
of an index whose places are wrong it reads other tokens, in silence. The layout is megatron-core 0.16.1's
(``megatron/core/datasets/indexed_dataset.py``): ``.idx`` is a mark of 9 bytes, a version (8), the dtype's code (1),
``n`` sequences (8), ``d`` documents (8), then ``n`` lengths (4 each), ``n`` places in bytes (8) and ``d`` first
sequences of documents (8).
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np

from recipes.pretrain.tokens import HELD_OUT, Manifest, beside
from toolkit.errors import ToolkitError

MARK = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
TOKENS = {4: np.dtype(np.int32), 8: np.dtype(np.uint16)}  # by the codes of what recipes.pretrain.prepare writes
HASHED_BYTES = 2**28  # of a .bin: longer ones are not read whole at every start
AGAIN = "prepare the data again, with --force"


def require_sound(prefix: str, manifest: Manifest) -> None:
    """Raise ToolkitError for files that are missing, torn, damaged, or not of this manifest."""
    if min(manifest.documents, manifest.tokens, manifest.held_out_documents, manifest.held_out_tokens) < 0:
        raise ToolkitError(f"{beside(prefix, '.json')} counts less than nothing", remedy=AGAIN)
    _pair(prefix, "", manifest.documents, manifest.tokens, manifest.sha256)
    if manifest.held_out_tokens:
        held = manifest.held_out_documents, manifest.held_out_tokens, manifest.held_out_sha256
        _pair(prefix, HELD_OUT, *held)


def _pair(prefix: str, which: str, documents: int, tokens: int, sha256: str) -> None:
    index, content = beside(prefix, f"{which}.idx"), beside(prefix, f"{which}.bin")
    manifest = beside(prefix, ".json")
    try:
        size, dtype = content.stat().st_size, _index(index, documents, tokens, manifest)
        if size != tokens * dtype.itemsize:
            raise ToolkitError(
                f"{content} has {size:,} bytes, {tokens:,} tokens of {manifest} are {tokens * dtype.itemsize:,}",
                remedy=AGAIN,
            )
        if size > HASHED_BYTES:
            return
        with content.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ToolkitError(f"cannot read {error.filename or content}: {error.strerror}", remedy=AGAIN) from error
    if found != sha256:
        raise ToolkitError(f"{content} is damaged: its SHA-256 is not the one in {manifest}", remedy=AGAIN)


def _index(path: Path, documents: int, tokens: int, manifest: Path) -> np.dtype:
    """The dtype of the tokens, of an index whose lengths and places fit together."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if len(head) < HEADER.size or not head.startswith(MARK):
        raise ToolkitError(f"{path} is no index of megatron-core, or torn: {size:,} bytes", remedy=AGAIN)
    _, version, code, count, ends = HEADER.unpack(head)
    if version != 1 or code not in TOKENS:
        raise ToolkitError(f"{path} has version {version} and tokens of kind {code}", remedy=AGAIN)
    needed = HEADER.size + 12 * count + 8 * ends
    if (count, ends) != (documents, documents + 1) or size != needed:
        raise ToolkitError(
            f"{path} has {size:,} bytes for {count:,} documents; {manifest} counts {documents:,}", remedy=AGAIN
        )
    lengths = np.memmap(path, np.dtype("<i4"), "r", HEADER.size, (count,))
    places = np.memmap(path, np.dtype("<i8"), "r", HEADER.size + 4 * count, (count,))
    dtype = TOKENS[code]
    follow = np.cumsum(lengths, dtype=np.int64) * dtype.itemsize  # where the next document begins
    starts = np.memmap(path, np.dtype("<i8"), "r", HEADER.size + 12 * count, (ends,))
    fits = (
        bool((lengths > 0).all())
        and bool((places[1:] == follow[:-1]).all())
        and places[:1].sum() == 0
        and bool((starts == np.arange(ends)).all())
    )
    if not fits or follow[-1] != tokens * dtype.itemsize:
        raise ToolkitError(f"{path} is damaged: its documents do not lie one after another in the .bin", remedy=AGAIN)
    return dtype
