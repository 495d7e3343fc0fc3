"""Quantities as people write them: sizes, rates and tokens in; readable text out.

GB is 1e9 bytes and GiB is 2**30 bytes, always: memory is shown in GiB, bandwidth in GB/s. A small
``b`` is a bit and a capital ``B`` is a byte. Whatever could mean two things is refused with both.
"""

from __future__ import annotations

import math
import re

from toolkit.errors import ToolkitError

KB, MB, GB, TB, PB = 1e3, 1e6, 1e9, 1e12, 1e15
KIB, MIB, GIB, TIB, PIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40, 2.0**50
TERA = 1e12  # FLOP/s are shown in TFLOP/s
BITS_PER_BYTE = 8.0

_NUMBER = r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*|(?=\.))(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
_QUANTITY = rf"\s*{_NUMBER}\s*(?P<unit>[^0-9\s].*?)?\s*"

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
MOST_TOKENS = 1e18  # larger requests are typing errors
_TOKENS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def _quantity(text: str, what: str, example: str) -> tuple[float, str]:
    """The positive, finite number at the front of a text, and the unit behind it."""
    text = text[:80]  # nothing sensible is longer
    match = re.fullmatch(_QUANTITY, text, re.DOTALL)
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
    if tokens > MOST_TOKENS:
        raise ToolkitError(f"{what} {text!r} is above {format_tokens(MOST_TOKENS)}", remedy="write for example 1.5T")
    if abs(tokens - round(tokens)) > 1e-9 * tokens:
        raise ToolkitError(f"{what} {text!r} is not a whole number", remedy="write for example 300B or 1.5T")
    return round(tokens)


def _scaled(value: float, scales: tuple[tuple[float, str], ...], from_share: float = 0.99995) -> str:
    """The value in the largest unit of which it is at least the share, with four figures."""
    for scale, unit in scales:
        if abs(value) >= scale * from_share:  # what prints as 1.000 of a unit belongs to that unit
            return f"{value / scale:.4g} {unit}"
    scale, unit = scales[-1]
    return f"{value / scale:.4g} {unit}"


def format_bytes(value: float) -> str:
    """Readable binary size: ``79.18 GiB``; never 1000 or more of a unit: 1,002 MiB are ``0.9785 GiB``."""
    units = ((PIB, "PiB"), (TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1.0, "B"))
    return _scaled(value, units, 999.95 / 1024.0)


def format_whole(value: float) -> str:
    """Three digits with commas, never as a power of ten: ``3,930,000``, ``48,100``, ``2.5``."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def format_rate(value: float) -> str:
    """Readable decimal rate: ``450 GB/s``."""
    return _scaled(value, ((TB, "TB/s"), (GB, "GB/s"), (MB, "MB/s"), (KB, "KB/s"), (1.0, "B/s")))


def format_tokens(value: float) -> str:
    """Readable token count: ``1.5T``, ``300B``, ``4096``."""
    if value < 1e5:
        return f"{value:.10g}"
    return _scaled(value, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))).replace(" ", "")


def format_seconds(value: float) -> str:
    """Readable duration: ``12.5 us``, ``843 ms``, ``200.4 s``, ``12 min 20 s``, ``2 h 5 min``, ``3.2 days``."""
    if value == 0:
        return "0 s"
    if abs(value) < 599.95:
        return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))
    if value < 3599.5:
        return f"{round(value) // 60} min {round(value) % 60} s"
    if value < 172_770.0:
        return f"{round(value / 60) // 60} h {round(value / 60) % 60} min"
    return f"{value / 86400:.4g} days"


def format_count(value: float) -> str:
    """A count in three digits: ``6.74B``, ``350M``, ``1.03T``, ``998``."""
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g}{unit}" if abs(value) < 999.5 * scale else f"{value / scale:.0f}{unit}"
    return f"{value:.3g}"
