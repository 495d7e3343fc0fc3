"""Tables that fit the terminal: numbers whole, words broken at spaces only, and what found no room is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

EDGES = 2  # blanks left and right of a table
HOW = "a wider terminal or --json shows"


class Column(NamedTuple):
    """One column; ``spare`` says which go first where a line has no room for all, the largest first, 0 never."""

    head: str  # lines parted by \n
    justify: Literal["left", "right"] = "right"
    spare: int = 0
    wraps: bool = False  # at spaces; other columns are as wide as their widest cell
    called: str = ""  # where it is left out, if not by its head

    @property
    def name(self) -> str:
        """What a sentence calls it."""
        return self.called or " ".join(self.head.split("\n"))


def draw(
    out: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text | str]], title: str = "", below: bool = False
) -> None:
    """A table no wider than the terminal, then a sentence with the columns that it had to leave out.

    Where there is no room, first the blanks between columns become fewer, then columns that may go do. With ``below``
    the last column, which wraps, stands under the table in lines that begin with the first, wherever it would break.
    """
    kept, under = list(range(len(columns))), False
    if below and _needed(columns, rows, kept, 1, whole=True) > out.width:
        kept, under = kept[:-1], True
    blanks = 1 if _needed(columns, rows, kept, 1, whole=True) <= out.width else 0
    left_out: list[int] = []
    while _needed(columns, rows, kept, blanks) > out.width and any(columns[place].spare for place in kept):
        left_out.append(max(kept, key=lambda place: columns[place].spare))
        kept.remove(left_out[-1])
    if left_out and _needed(columns, rows, kept, 1, whole=True) <= out.width:
        blanks = 1
    drawn = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.padding = (0, blanks, 0, 0)
    widths = _widths(columns, rows, kept, blanks, out.width)
    for place, width in zip(kept, widths, strict=True):
        column = columns[place]
        drawn.add_column(column.head, justify=column.justify, width=width, no_wrap=not column.wraps, overflow="fold")
    for row in rows:
        drawn.add_row(*(_text(row[place]) for place in kept))
    drawn.width = sum(widths) + (1 + blanks) * (len(kept) - 1) + EDGES + blanks
    out.print(drawn, crop=False, no_wrap=True, overflow="ignore")
    if under:
        from toolkit.report.terminal import paragraph

        first = max(len(str(row[0])) for row in rows)
        for row in rows:
            head = f"{columns[-1].name} of {row[0]!s:>{first}}  "
            line = paragraph(str(row[-1]), out.width, head, len(head))
            out.print(line, markup=False, soft_wrap=True)
    if left_out:
        from toolkit.report.terminal import paragraph

        names = ", ".join(columns[place].name for place in sorted(left_out))
        out.print(paragraph(f"no room for: {names}; {HOW} them", out.width, "", 2), markup=False, soft_wrap=True)


def fits(out: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text | str]]) -> bool:
    """Whether a line of the terminal holds all columns."""
    return _needed(columns, rows, list(range(len(columns))), 0) <= out.width


def _text(cell: Text | str) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _lines(column: Column, rows: Sequence[Sequence[Text | str]], place: int) -> list[str]:
    return [*column.head.split("\n"), *(str(row[place]) for row in rows)]


def _natural(columns: Sequence[Column], rows: Sequence[Sequence[Text | str]], place: int) -> int:
    return max(len(line) for line in _lines(columns[place], rows, place))


def _least(columns: Sequence[Column], rows: Sequence[Sequence[Text | str]], place: int) -> int:
    """The widest word where words may be broken apart, else the widest cell."""
    lines = _lines(columns[place], rows, place)
    if not columns[place].wraps:
        return max(len(line) for line in lines)
    return max((len(word) for line in lines for word in line.split()), default=1)


def _needed(
    columns: Sequence[Column], rows: Sequence[Sequence[Text | str]], kept: list[int], blanks: int, whole: bool = False
) -> int:
    width = _natural if whole else _least
    return sum(width(columns, rows, place) for place in kept) + (1 + blanks) * (len(kept) - 1) + EDGES + blanks


def _widths(
    columns: Sequence[Column], rows: Sequence[Sequence[Text | str]], kept: list[int], blanks: int, width: int
) -> list[int]:
    """The least of each, and what is left of the line for those that wrap, in proportion to what they could use."""
    widths = [_least(columns, rows, place) for place in kept]
    natural = [_natural(columns, rows, place) for place in kept]
    for _ in range(width - _needed(columns, rows, kept, blanks)):
        index = min(range(len(kept)), key=lambda each: widths[each] / max(natural[each], 1))
        if widths[index] >= natural[index]:
            break
        widths[index] += 1
    return widths
