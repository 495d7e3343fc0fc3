"""The page of dry runs at full depth holds every row that writes it, each within the tolerance of a finding."""

from __future__ import annotations

import re

from tests.verify_table import DOCUMENT, NOTES, TEXT, rows
from toolkit.verify.run import TOLERANCE


def test_the_page_is_of_these_rows() -> None:
    page = DOCUMENT.read_text()
    assert page.startswith(TEXT)
    assert page.endswith(NOTES)
    table = page.removeprefix(TEXT).removesuffix(NOTES).strip().splitlines()
    assert list(dict.fromkeys(line.split(" | ")[0].removeprefix("| ") for line in table)) == list(rows())
    peaks = [float(line.split(" | ")[4].removesuffix(" %")) / 100.0 for line in table]
    sent = [float(share) / 100.0 for line in table for share in re.findall(r"(?:tp|pp|ep|dp) ([+-]\S+) %", line)]
    assert len(sent) >= len(table)
    assert max(map(abs, peaks + sent)) < TOLERANCE
