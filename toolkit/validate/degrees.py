"""Degrees of parallelism of a row: as stated, with a blank one from what the others leave of the GPUs."""

from __future__ import annotations

from typing import NamedTuple

from toolkit.validate.rows import Row


class Degrees(NamedTuple):
    """tp, pp, cp and ep; 1 where a degree is blank. ``blank`` names those of tp and pp that nothing tells."""

    tp: int
    pp: int
    cp: int
    ep: int
    blank: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    contradiction: str = ""


def degrees_of(row: Row) -> Degrees:
    """All GPUs are tp x pp x cp x dp: with ``dp`` stated, a single blank degree follows, and all four are checked.

    Ranks that share experts (ep) are some of the data-parallel ones, so they do not count. Where dp x cp alone are all
    GPUs, blank tp and pp are both 1.
    """
    gpus, dp = row.count("n_gpus") or 1, row.count("dp")
    tp, pp = row.count("tp"), row.count("pp")
    cp, ep = row.count("cp") or 1, row.count("ep") or 1
    blank = tuple(name for name, value in (("tp", tp), ("pp", pp)) if value is None)
    if dp is None:
        return Degrees(tp or 1, pp or 1, cp, ep, blank)
    stated, assumed = dp * (tp or 1) * (pp or 1) * cp, list[str]()
    rest = gpus // stated if gpus % stated == 0 else 0
    if blank and rest and (len(blank) == 1 or rest == 1):
        tp, pp = tp or rest, pp or rest
        assumed = [f"{name} {rest} from dp {dp}" for name in blank]
        blank, stated = (), gpus
    wrong = not blank and stated != gpus
    product = f"dp {dp} x tp {tp} x pp {pp} x cp {cp}"
    contradiction = f"contradiction: {product} is not {gpus} GPUs" if wrong else ""
    return Degrees(tp or 1, pp or 1, cp, ep, blank, tuple(assumed), contradiction)
