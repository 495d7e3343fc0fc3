"""The text of ``toolkit check``: one finding after the other, each with what happens and what to write instead."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from toolkit.finding import Finding

WIDTH = 100


def lines(found: Sequence[Finding], files: Sequence[str]) -> Iterator[str]:
    """``file:line: severity: what [code]``, why, remedy; then how many of each severity."""
    for each in found:
        place = f"{each.file}:{each.where.rpartition(' ')[2]}" if each.where else each.file
        yield f"{place}: {each.severity}: {each.message} [{each.code}]"
        yield from _under("why", each.why)
        yield from _under("instead", each.remedy)
        yield from _under("source", each.source)
    counts = {name: sum(each.severity == name for each in found) for name in ("error", "warning", "info")}
    told = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count]
    many = f"{len(files)} file{'s' * (len(files) != 1)}"
    yield f"{many}: {', '.join(told) or 'nothing found'}"


def _under(label: str, words: str) -> list[str]:
    if not words:
        return []
    return textwrap.wrap(
        f"  {label}: {words}",
        WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
