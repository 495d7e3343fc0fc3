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


# ------------------------------------------------------------------------------------------------
# Model sizes
# ------------------------------------------------------------------------------------------------

_COUNT_UNITS = {
    "k": 1e3,
    "thousand": 1e3,
    "m": 1e6,
    "million": 1e6,
    "b": 1e9,
    "bn": 1e9,
    "billion": 1e9,
    "t": 1e12,
    "trillion": 1e12,
}
_MODEL_SIZE = re.compile(
    r"\+?(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:e\+?[0-9]{1,2})?)"
    r"\s*(?P<unit>[a-z]+)?(?:\s+param(?:eter)?s?)?"
)
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9 ._:/\\@+-]*")
_SIZE_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?[bmt]")
_ACTIVE_TOKEN = re.compile(r"a[0-9]+(?:\.[0-9]+)?[bm]")  # Qwen3-30B-A3B: 3B of 30B are active
_EFFECTIVE_TOKEN = re.compile(r"e[0-9]+(?:\.[0-9]+)?b")  # gemma-3n-E4B: as if it were 4B
_EXPERTS_TOKEN = re.compile(r"[0-9]+e")  # Llama-4-Scout-17B-16E: 17B are active, 16 experts
_MIXTURE = re.compile(r"[0-9]+x[0-9]+(?:\.[0-9]+)?[bm]")
# The product overstates: only the MLPs are repeated (counts of mistralai's own configurations).
_MIXTURES = {"8x7b": 46_702_792_704, "8x22b": 140_630_071_296}
_LEAST_BARE_COUNT = 1_000_000  # a bare number below this is more likely short for billions
_GREATEST_COUNT = 1e15
_SIZE_REMEDY = "write a count such as 7B, 350M or 1.5T, or name a model with --model"


class ModelSize(NamedTuple):
    """A parameter count as it was written, and what had to be assumed to read it."""

    parameters: int
    notes: tuple[str, ...] = ()


def parse_parameters(text: str) -> int:
    """The parameter count in ``7B``, ``6.7e9``, ``1.3 B``, ``7,000,000,000`` or in a model's name; see read_size."""
    return read_size(text).parameters


def read_size(text: str) -> ModelSize:
    """A size as people write it, or the size token in a model's name (the last part of a path counts).

    Only a whole token counts: ``4bit`` is not 4B, ``13B`` is not 3B. Raises ToolkitError for what is no size
    (``abc35b!!``, ``-7B``, ``NaN``), for a bare small number (``70`` could mean 70B), and for names that give
    no total (``phi3:mini``, active sizes alone, several sizes).
    """
    lowered = text.strip().casefold()
    if not lowered:
        raise ToolkitError("the model size is empty", remedy=_SIZE_REMEDY)
    match = _MODEL_SIZE.fullmatch(lowered)
    if match and (match["unit"] is None or match["unit"] in _COUNT_UNITS):
        return _plain_count(text, match["number"], match["unit"])
    if match and re.fullmatch(r"[kmgt]i?b", match["unit"]):
        raise ToolkitError(f"{text!r} is an amount of memory, not a number of parameters", remedy=_SIZE_REMEDY)
    if not _MODEL_NAME.fullmatch(lowered):
        raise ToolkitError(f"{text!r} is neither a size nor a model's name", remedy=_SIZE_REMEDY)
    return _size_in_name(text, re.split(r"[/\\]", lowered.rstrip("/\\"))[-1])


def _plain_count(text: str, number: str, unit: str | None) -> ModelSize:
    value = float(number.replace(",", "").replace("_", "")) * _COUNT_UNITS.get(unit or "", 1.0)
    if unit is None and 0 < value < _LEAST_BARE_COUNT:
        raise ToolkitError(
            f"{text!r} is ambiguous: {number} parameters, or {number} billion?",
            remedy=f"did you mean {number}B? write the unit",
        )
    if not 1 <= value <= _GREATEST_COUNT:
        raise ToolkitError(f"{text!r} is not a possible number of parameters", remedy=_SIZE_REMEDY)
    return ModelSize(round(value))


def _size_in_name(text: str, name: str) -> ModelSize:
    # a dot between digits belongs to a number, any other parts words: llama-2-7b.Q4_K_M.gguf
    tokens = [token for token in re.split(r"[-_:@+\s]+|(?<![0-9])\.|\.(?![0-9])", name) if token]
    mixtures = [token for token in tokens if _MIXTURE.fullmatch(token)]
    if mixtures:
        if len(mixtures) == 1 and mixtures[0] in _MIXTURES:
            return ModelSize(_MIXTURES[mixtures[0]], (f"{mixtures[0]} shares all but its experts: not their product",))
        raise ToolkitError(
            f"{text!r} is experts x size, which is not a parameter count", remedy="name the model, or write its total"
        )
    sizes = dict.fromkeys(token for token in tokens if _SIZE_TOKEN.fullmatch(token))
    if len(sizes) > 1:  # TinyLlama-1.1B-...-3T: trained on 3T tokens
        sizes = {size: None for size in sizes if not size.endswith("t")}
    active = [token for token in tokens if _ACTIVE_TOKEN.fullmatch(token)]
    if len(sizes) == 1:
        (size,) = sizes
        experts = [token for token in tokens if _EXPERTS_TOKEN.fullmatch(token)]
        if experts and not active:
            raise ToolkitError(
                f"{text!r}: {size} beside {experts[0]} (experts) is the active size, not the total",
                remedy="name the model with --model, or write its total",
            )
        others = [token for token in tokens if token != size]
        notes = (f"read as {size.upper()}; {', '.join(others)} ignored",) if others else ()
        return ModelSize(_plain_count(text, size[:-1], size[-1]).parameters, notes)
    effective = [token for token in tokens if _EFFECTIVE_TOKEN.fullmatch(token)]
    if not sizes and len(effective) == 1:
        count = _plain_count(text, effective[0][1:-1], "b").parameters
        return ModelSize(count, (f"{effective[0].upper()} is an effective size; the total is not known from it",))
    if sizes:
        raise ToolkitError(f"{text!r} holds several sizes: {', '.join(sizes)}", remedy=_SIZE_REMEDY)
    if active:
        raise ToolkitError(f"{text!r} tells only its active size, {active[0]}", remedy=_SIZE_REMEDY)
    raise ToolkitError(f"{text!r} does not tell a size", remedy=_SIZE_REMEDY)


def format_count(value: float) -> str:
    """A count in three digits: ``6.74B``, ``350M``, ``1.03T``, ``998``."""
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g}{unit}" if abs(value) < 999.5 * scale else f"{value / scale:.0f}{unit}"
    return f"{value:.3g}"
