"""Does it fit? The verdict on an estimate, against what the driver lets a process use."""

from __future__ import annotations

from toolkit.numeric import Number, where

# An estimate below this share of the card is called a fit: the room for its own error. A choice: assumed.
COMFORT = 0.92


def verdict(total_bytes: Number, limit_bytes: Number) -> Number:
    """Index into VERDICTS: 0 fits, 1 tight, 2 no. Scalar or column.

    ``tight`` is the band in which the estimate's own error decides: it may run, or run out. 83e9 bytes on a
    card that shows 79.35 GiB are 97 % of it: tight, neither a fit nor impossible.
    """
    return where(total_bytes > 1.0 * limit_bytes, 2, where(total_bytes > COMFORT * limit_bytes, 1, 0))
