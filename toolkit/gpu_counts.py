"""GPU counts as people write them: ``64``, ``8x8``, ``2 nodes x 8 GPUs``, ``8xH100``."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from toolkit.errors import ToolkitError

MOST_GPUS = 1_000_000  # larger requests are typing errors
MOST_GPUS_PER_NODE = 576  # of one NVLink domain, the largest that is announced
_COUNT = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*"
_TIMES = r"\s*[xX*\u00d7]\s*"
_GPUS = (
    rf"(?P<first>{_COUNT})\s*(?:nodes?)?(?:{_TIMES}(?P<second>{_COUNT}))?"
    rf"(?:\s*(?:gpus?)(?P<unit>(?:\s+per\s+node)?)|(?:{_TIMES}|\s+)(?P<word>[a-zA-Z][\w .\-]*))?"
)
_SLURM = rf"(?:gpu:)?(?P<word>[a-zA-Z][\w.\-]*):(?P<first>{_COUNT})"


class GpuRequest(NamedTuple):
    """``gpus`` in all; ``nodes`` and ``gpus_per_node`` where the text fixed them; a card's name where it had one."""

    gpus: int
    nodes: int = 0
    gpus_per_node: int = 0
    accelerator: str = ""


def parse_gpus(text: str | int) -> GpuRequest:
    """``64``, ``64 GPUs``, ``8x8``, ``8 * 8`` (nodes x GPUs per node), ``8xH100``, ``2x8xH100``, ``h100:8``.

    Raises ToolkitError for anything else: fractions, zero, negative numbers, three counts, words.

    >>> parse_gpus("8x8")
    GpuRequest(gpus=64, nodes=8, gpus_per_node=8, accelerator='')
    >>> parse_gpus("2 x 8 x H100").accelerator
    'H100'
    """
    written = str(text).strip()[:80]  # nothing sensible is longer, and int() refuses thousands of digits
    match = re.fullmatch(_GPUS, written, re.ASCII | re.IGNORECASE) or re.fullmatch(_SLURM, written, re.ASCII)
    remedy = "write a count (64) or nodes x GPUs per node (8x8)"
    if re.search(r"[0-9]\s*(\.\.|-|,|;|to)\s*[0-9]", written):
        remedy += "; toolkit plan also takes a range (8..512) or a list (8, 16, 48)"
    groups = match.groupdict() if match else {}
    word = (groups.get("word") or "").strip()
    if match is None or re.fullmatch(r"x.*|[kmgtbw]|nodes?|thousand|million", word, re.IGNORECASE):
        raise ToolkitError(f"GPU count {written!r} is not understood", remedy=remedy)
    counts = [int(re.sub("[,_]", "", groups[key])) for key in ("first", "second") if groups.get(key)]
    if len(counts) == 1 and re.match(rf"(?:{_COUNT})\s*nodes?", written, re.IGNORECASE):
        raise ToolkitError(
            f"GPU count {written!r} names nodes only", remedy=f"say how many GPUs each has: {counts[0]}x8"
        )
    if 0 in counts:
        raise ToolkitError(f"GPU count {written!r} has a zero in it", remedy=remedy)
    if len(counts) == 2 and counts[1] > MOST_GPUS_PER_NODE:
        raise ToolkitError(
            f"GPU count {written!r} means {counts[0]} nodes of {counts[1]} GPUs, and no node is that large",
            remedy=f"for {counts[0]} cards of type {counts[1]}: --gpus {counts[0]} --accelerator {counts[1]}",
        )
    if math.prod(counts) > MOST_GPUS:
        raise ToolkitError(f"GPU count {written!r} is above {MOST_GPUS:,}", remedy=remedy)
    accelerator = "" if re.fullmatch(r"gpus?", word, re.IGNORECASE) else word
    if len(counts) == 2:
        return GpuRequest(counts[0] * counts[1], counts[0], counts[1], accelerator)
    return GpuRequest(counts[0], accelerator=accelerator)
