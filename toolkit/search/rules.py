"""What the frameworks accept, as a table: one Constraint for each rule, with its source.

Rules that a framework itself checks late (when the model is built, or in the first step) or never are
here too: a job must not find them after hours in a queue. They are asked in this order.
"""

from __future__ import annotations

from toolkit.search.rule import Constraint
from toolkit.search.rules_degrees import DEGREES
from toolkit.search.rules_memory import SAVING
from toolkit.search.rules_sequence import SEQUENCE

CONSTRAINTS: tuple[Constraint, ...] = (*DEGREES, *SEQUENCE, *SAVING)
