"""Fitted scaling laws of data/scaling_laws, and those of the user's own folder."""

from __future__ import annotations

from toolkit.errors import Problems
from toolkit.registry import files
from toolkit.registry.strict import decode
from toolkit.scaling_law import ScalingLaw

KIND = "scaling_laws"
# what a fit of a loss in nats per token can be; beyond, the optimum is no number
POSSIBLE = {"E": (0.0, 10.0), "A": (1.0, 1e6), "B": (1.0, 1e6), "alpha": (0.1, 1.0), "beta": (0.1, 1.0)}
CHOSEN = "besiroglu-2024"  # the fit that agrees with the other two approaches of Hoffmann et al.


def scaling_laws() -> dict[str, ScalingLaw]:
    """Every law by name, the one that plans follow first; raises ToolkitError for a file that holds none."""
    found = {
        entry.name: decode({"name": entry.name} | entry.values, ScalingLaw, str(entry.path))
        for entry in files.entries(KIND).values()
    }
    with Problems() as problems:
        for law in found.values():
            for constant, (low, high) in POSSIBLE.items():
                if not low <= getattr(law, constant) <= high:
                    problems.add(
                        f"scaling law {law.name}: {constant} is {getattr(law, constant)}", f"{low:g} to {high:g}"
                    )
    return {CHOSEN: found[CHOSEN]} | found
