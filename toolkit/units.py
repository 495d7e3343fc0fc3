"""Units as people write them: sizes, rates, tokens, GPU counts and model sizes in; readable text out.

GB is 1e9 bytes and GiB is 2**30 bytes, always: memory is shown in GiB, bandwidth in GB/s. A small
``b`` is a bit and a capital ``B`` is a byte. Whatever could mean two things is refused with both.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from toolkit.errors import ToolkitError

# ------------------------------------------------------------------------------------------------
# Constants
# ------------------------------------------------------------------------------------------------

KB, MB, GB, TB, PB = 1e3, 1e6, 1e9, 1e12, 1e15
KIB, MIB, GIB, TIB, PIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40, 2.0**50
TERA = 1e12  # FLOP/s are shown in TFLOP/s
BITS_PER_BYTE = 8.0

# ------------------------------------------------------------------------------------------------
# Bytes, rates, tokens and seconds
# ------------------------------------------------------------------------------------------------

_NUMBER = r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*|(?=\.))(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
_QUANTITY = re.compile(rf"\s*{_NUMBER}\s*(?P<unit>[^0-9\s].*?)?\s*", re.DOTALL)

_BYTES = {
    "b": 1.0,
    "kb": KB,
    "mb": MB,
    "gb": GB,
    "tb": TB,
    "pb": PB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "pib": PIB,
}
_PREFIX = {"": 1.0, "k": KB, "m": MB, "g": GB, "t": TB, "p": PB}
_BINARY_PREFIX = {"ki": KIB, "mi": MIB, "gi": GIB, "ti": TIB, "pi": PIB}
_TOKENS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def _quantity(text: str, what: str, example: str) -> tuple[float, str]:
    """The positive, finite number at the front of a text, and the unit behind it."""
    text = text[:80]  # nothing sensible is longer
    match = _QUANTITY.fullmatch(text)
    try:
        value = float(match["number"].replace(",", "").replace("_", "")) if match else math.nan
    except ValueError:  # a lone "."
        value = math.nan
    if match is None or math.isnan(value):
        raise ToolkitError(f"{what} {text!r} is not a number with a unit", remedy=f"write for example {example}")
    if not 0.0 < value < math.inf:
        raise ToolkitError(f"{what} {text!r} must be positive and finite", remedy=f"write for example {example}")
    return value, match["unit"] or ""


def _finite(value: float, text: str, what: str, example: str) -> float:
    if not 0.0 < value < math.inf:
        raise ToolkitError(f"{what} {text!r} is out of range", remedy=f"write for example {example}")
    return value


def parse_bytes(text: str, what: str = "size") -> float:
    """Bytes in ``80GiB``, ``80 GB`` or ``512MB``; raises ToolkitError for a missing or doubtful unit.

    >>> parse_bytes("80GiB") == 80 * 2**30, parse_bytes("80 GB") == 80e9
    (True, True)
    """
    value, unit = _quantity(text, what, "80GiB or 80GB")
    if re.fullmatch(r"[kKMGTP]i?(b|bit|bits)", unit) or unit.lower().endswith(("bit", "bits")):
        raise ToolkitError(f"{what} {text!r} is in bits", remedy=f"write bytes with a capital B: {unit[0]}B")
    if unit.lower() not in _BYTES:
        first = unit[:1].upper() if unit[:1].lower() in tuple("kmgtp") else "G"
        raise ToolkitError(
            f"{what} {text!r} has {'the unknown unit ' + repr(unit) if unit else 'no unit'}",
            remedy=f"write {first}iB (powers of 1024) or {first}B (powers of 1000), for example 80GiB",
        )
    return _finite(value * _BYTES[unit.lower()], text, what, "80GiB")


def parse_rate(text: str, what: str = "rate") -> float:
    """Bytes per second in ``400Gb/s`` (bits), ``400Gbps`` (bits), ``450GB/s`` or ``50GiB/s``.

    Raises ToolkitError where bits and bytes cannot be told apart (``450gb/s``, ``400G``).

    >>> parse_rate("400Gb/s"), parse_rate("450GB/s")
    (50000000000.0, 450000000000.0)
    """
    value, unit = _quantity(text, what, "400Gb/s or 50GB/s")
    match = re.fullmatch(r"(?P<prefix>[kKmMgGtTpP]?i?)(?P<amount>b|B|bits?|Bytes?|bytes?)(?:/s|/sec|ps|p/s)", unit)
    if match is None:
        match = re.fullmatch(r"(?P<prefix>[kKmMgGtTpP])(?P<amount>bit)(?:/s|ps)?", unit, re.IGNORECASE)
    if match is None:
        raise ToolkitError(
            f"{what} {text!r} has {'the unknown unit ' + repr(unit) if unit else 'no unit'}",
            remedy="write Gb/s for gigabits or GB/s for gigabytes per second, for example 400Gb/s",
        )
    prefix, amount = match["prefix"], match["amount"]
    if amount == "b" and prefix in tuple("kmgtp") and "/" in unit:
        raise ToolkitError(
            f"{what} {text!r} may be bits or bytes",
            remedy=f"write {prefix.upper()}b/s for bits or {prefix.upper()}B/s for bytes",
        )
    scale = _PREFIX.get(prefix.lower(), 0.0) or _BINARY_PREFIX.get(prefix.lower(), 0.0)
    if not scale:
        raise ToolkitError(f"{what} {text!r} has the unknown unit {unit!r}", remedy="write for example 400Gb/s")
    if amount == "b" or amount.lower().startswith("bit"):
        scale /= BITS_PER_BYTE
    return _finite(value * scale, text, what, "400Gb/s")


def parse_tokens(text: str, what: str = "token count") -> int:
    """Tokens in ``1.5T``, ``300B``, ``15e12`` or ``2_000_000``; raises ToolkitError otherwise.

    >>> parse_tokens("1.5T"), parse_tokens("15e12")
    (1500000000000, 15000000000000)
    """
    value, unit = _quantity(text, what, "300B or 1.5T")
    letter = re.sub(r"\s*tok(en)?s?$", "", unit.lower())
    if letter not in _TOKENS:
        raise ToolkitError(f"{what} {text!r} has the unknown unit {unit!r}", remedy="use K, M, B or T: 300B, 1.5T")
    tokens = _finite(value * _TOKENS[letter], text, what, "1.5T")
    if abs(tokens - round(tokens)) > 1e-9 * tokens:
        raise ToolkitError(f"{what} {text!r} is not a whole number", remedy="write for example 300B or 1.5T")
    return round(tokens)


def _scaled(value: float, scales: tuple[tuple[float, str], ...]) -> str:
    """The value in the largest unit that leaves at least 1 in front, with four figures."""
    for scale, unit in scales:
        if abs(value) >= scale * 0.99995:  # what prints as 1.000 of a unit belongs to that unit
            return f"{value / scale:.4g} {unit}"
    scale, unit = scales[-1]
    return f"{value / scale:.4g} {unit}"


def format_bytes(value: float) -> str:
    """Readable binary size: ``79.18 GiB``."""
    return _scaled(value, ((PIB, "PiB"), (TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1.0, "B")))


def format_rate(value: float) -> str:
    """Readable decimal rate: ``450 GB/s``."""
    return _scaled(value, ((TB, "TB/s"), (GB, "GB/s"), (MB, "MB/s"), (KB, "KB/s"), (1.0, "B/s")))


def format_tokens(value: float) -> str:
    """Readable token count: ``1.5T``, ``300B``, ``4096``."""
    if value < 1e5:
        return f"{value:.10g}"
    return _scaled(value, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))).replace(" ", "")


def format_seconds(value: float) -> str:
    """Readable duration: ``12.5 us``, ``843 ms``, ``1.25 s``, ``3 min 20 s``, ``2 h 5 min``, ``3.2 days``."""
    if value == 0:
        return "0 s"
    if abs(value) < 59.995:
        return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))
    if value < 3599.5:
        return f"{round(value) // 60} min {round(value) % 60} s"
    if value < 172_770.0:
        return f"{round(value / 60) // 60} h {round(value / 60) % 60} min"
    return f"{value / 86400:.4g} days"


# ------------------------------------------------------------------------------------------------
# GPU counts
# ------------------------------------------------------------------------------------------------

MOST_GPUS = 1_000_000  # larger requests are typing errors
MOST_GPUS_PER_NODE = 576  # of one NVLink domain, the largest that is announced
_COUNT = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*"
_TIMES = r"\s*[xX*\u00d7]\s*"
_GPUS = re.compile(
    rf"(?P<first>{_COUNT})\s*(?:nodes?)?(?:{_TIMES}(?P<second>{_COUNT}))?"
    rf"(?:\s*(?:gpus?)(?P<unit>(?:\s+per\s+node)?)|(?:{_TIMES}|\s+)(?P<word>[a-zA-Z][\w .\-]*))?",
    re.ASCII | re.IGNORECASE,
)
_SLURM = re.compile(rf"(?:gpu:)?(?P<word>[a-zA-Z][\w.\-]*):(?P<first>{_COUNT})", re.ASCII)


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
    match = _GPUS.fullmatch(written) or _SLURM.fullmatch(written)
    remedy = "write a count (64) or nodes x GPUs per node (8x8)"
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
