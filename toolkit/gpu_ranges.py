"""Several GPU counts as people write them: a range (``8..512``) or a list (``8,16,48``)."""

from __future__ import annotations

import re
from typing import NamedTuple

from toolkit.errors import Problems, ToolkitError
from toolkit.gpu_counts import MOST_GPUS, GpuRequest, parse_gpus

MOST_COUNTS = 64  # of a list; longer ones are typing errors
_THOUSANDS = re.compile(r"\s*[0-9]{1,3}(?:,[0-9]{3})+\s*")


class GpuRange(NamedTuple):
    """Counts that were listed, or the ends of a range (then ``counts`` has two); nodes and card where they were named.

    ``gpus_per_node`` is 0 where the text left it open.
    """

    counts: tuple[int, ...]
    listed: bool
    gpus_per_node: int = 0
    accelerator: str = ""

    def text(self, gpus: int) -> str:
        """One of the counts as :func:`toolkit.gpu_counts.parse_gpus` takes it."""
        size = self.gpus_per_node
        written = f"{gpus // size}x{size}" if size else str(gpus)
        return f"{written}x{self.accelerator}" if self.accelerator else written


def is_several(text: str) -> bool:
    """Whether a text means more than one count: it has two dots, or commas that do not group thousands."""
    if ".." in text or "\u2026" in text:
        return True
    return "," in text and not _one_number(text)


def parse_range(text: str) -> GpuRange:
    """``8..512``, ``1x8..64x8``, ``8,16,48`` or ``8x8, 16x8``; raises ToolkitError with every problem.

    >>> parse_range("8..512").counts, parse_range("16, 8, 48").counts
    ((8, 512), (8, 16, 48))
    """
    written = text.strip()[:400].replace("\u2026", "..")
    _refuse_doubtful(written)
    listed = ".." not in written
    parts = written.split(",") if listed else re.split(r"\.{2,3}", written)
    remedy = "write a range (8..512), or a list (8, 16, 48)"
    if not listed and (len(parts) != 2 or "," in written):
        raise ToolkitError(f"GPU counts {written[:80]!r}: a range has two ends", remedy=remedy)
    if not all(part.strip() for part in parts):
        missing = "a count is missing between commas" if listed else "an end is missing"
        raise ToolkitError(f"GPU counts {written[:80]!r}: {missing}", remedy=remedy)
    if len(parts) > MOST_COUNTS:
        raise ToolkitError(f"--gpus lists {len(parts)} counts", remedy=f"list at most {MOST_COUNTS}, or write a range")
    found: list[GpuRequest] = []
    with Problems() as problems:
        for part in parts:
            try:
                found.append(parse_gpus(part))
            except ToolkitError as error:
                problems.absorb(error)
        if len(found) == len(parts):
            _refuse_mixture(problems, written, found)
            if not listed and found[0].gpus > found[1].gpus:
                problems.add(
                    f"GPU counts {written[:80]!r} run downwards", f"write {parts[1].strip()}..{parts[0].strip()}"
                )
    size = max(each.gpus_per_node for each in found)
    card = next((each.accelerator for each in found if each.accelerator), "")
    counts = tuple(sorted({each.gpus for each in found})) if listed else tuple(each.gpus for each in found)
    return GpuRange(counts, listed, size, card)


def between(low: int, high: int, gpus_per_node: int, whole_nodes: bool = False) -> tuple[int, ...]:
    """Counts to look at from ``low`` to ``high``: both, and between them powers of two and doublings of a node.

    A count above one node makes whole nodes; below, it is a part of one, unless ``whole_nodes`` refuses that. Ends
    that do not are moved inwards, so that the result may be empty.

    >>> between(8, 512, 8)
    (8, 16, 32, 64, 128, 256, 512)
    >>> between(5, 50, 6)
    (5, 6, 12, 24, 48)
    """
    size = gpus_per_node
    if low > size or whole_nodes:
        low = -(-low // size) * size
    if high > size or whole_nodes:
        high = high // size * size
    powers = [2**power for power in range(MOST_GPUS.bit_length())]
    wanted = {low, high, *powers, *(size * power for power in powers)}
    return tuple(sorted(n for n in wanted if low <= n <= high and (n % size == 0 or (n < size and not whole_nodes))))


def _refuse_mixture(problems: Problems, written: str, found: list[GpuRequest]) -> None:
    sizes = {each.gpus_per_node for each in found if each.gpus_per_node}
    cards = {each.accelerator.casefold() for each in found if each.accelerator}
    if len(sizes) > 1:
        problems.add(
            f"GPU counts {written[:80]!r} mix nodes of {' and '.join(map(str, sorted(sizes)))} GPUs", "use one"
        )
    elif sizes and (odd := [each.gpus for each in found if each.gpus % max(sizes)]):
        problems.add(
            f"{odd[0]} GPUs are no whole nodes of {max(sizes)}", f"write {-(-odd[0] // max(sizes))}x{max(sizes)}"
        )
    if len(cards) > 1:
        problems.add(f"GPU counts {written[:80]!r} name several cards: {', '.join(sorted(cards))}", "use one")


def _one_number(text: str) -> bool:
    """Whether commas group the thousands of one count, which is no larger than a count can be."""
    return bool(_THOUSANDS.fullmatch(text)) and int(text.replace(",", "")) <= MOST_GPUS and not _doubtful(text)


def _doubtful(text: str) -> bool:
    """``64,128`` may be 64128 or two counts; ``16,384`` and ``24,576`` are such numbers as one cluster has."""
    if not _THOUSANDS.fullmatch(text) or text.count(",") != 1:
        return False
    first, second = (part.strip() for part in text.split(","))
    number = int(first + second)
    rising = not second.startswith("0") and int(first) < int(second)
    nodes = int(first) % 8 == 0 and int(second) % 8 == 0
    return rising and nodes and bool(number % 1000) and bool(number % 1024)


def _refuse_doubtful(text: str) -> None:
    if _doubtful(text):
        first, second = (part.strip() for part in text.split(","))
        raise ToolkitError(
            f"GPU count {text!r} may be {first}{second} GPUs, or {first} and {second}",
            remedy=f"write {first}{second}, or {first}, {second} with a blank",
        )
