"""Pinned degrees that contradict one another or the model, whatever the framework: told before anything is searched."""

from __future__ import annotations

from toolkit.errors import Problems
from toolkit.model import ModelSpec
from toolkit.strategy import RECOMPUTE

FULL = RECOMPUTE.index("full")


def check_pins(model: ModelSpec, pins: dict[str, int], problems: Problems) -> None:
    """Adds a problem for each pin that would do nothing, or that another pin forbids.

    The rules of the search see one strategy at a time and not who chose its values: in a dense model etp follows tp,
    so that a pinned etp of 2 would only forbid every tp but 2.
    """
    etp, layers = pins.get("etp", 1), pins.get("recompute_layers", 0)
    if etp > 1 and not model.is_moe and etp != pins.get("tp"):
        problems.add(f"--etp {etp}: {model.name} has no experts to cut", "leave --etp out (1 for a dense model)")
    if layers and pins.get("recompute", FULL) != FULL:
        problems.add(
            f"--recompute-layers {layers} needs --recompute full, not {RECOMPUTE[pins['recompute']]}",
            "use --recompute full, or leave --recompute-layers out",
        )
