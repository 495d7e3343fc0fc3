"""Fitted scaling laws of data/scaling_laws, and those of the user's own folder."""

from __future__ import annotations

from toolkit.registry import files
from toolkit.registry.strict import decode
from toolkit.scaling_law import ScalingLaw

KIND = "scaling_laws"
CHOSEN = "besiroglu-2024"  # the fit that agrees with the other two approaches of Hoffmann et al.


def scaling_laws() -> dict[str, ScalingLaw]:
    """Every law by name, the one that plans follow first; raises ToolkitError for a malformed file."""
    found = {
        entry.name: decode({"name": entry.name} | entry.values, ScalingLaw, str(entry.path))
        for entry in files.entries(KIND).values()
    }
    return {CHOSEN: found[CHOSEN]} | found
