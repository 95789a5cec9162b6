"""Rows of a table, and the lines that they become at a given width."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace

WIDTH = 100
"""Columns of a table that nobody gave a width."""
FIRM = "\u00a0"
"""A blank at which no line ends; it is shown as any other."""
SOFT = re.compile(r"(?<![,;+=]) ")
NARROWEST = 20
"""Columns that a value gets at least, also in a window that is too narrow for a table."""


@dataclass(frozen=True, slots=True)
class Row:
    """
    What belongs together: its text, and the rich style of the slice that is coloured.

    `right` is a word that stands at the right edge and has the style. `hang` is the column below which what is too long goes
    on; None never breaks the text, such as a command that one copies. `aside` follows the text, or stands below it whole.
    """

    text: str
    style: str = ""
    start: int = 0
    end: int | None = None
    right: str = ""
    hang: int | None = None
    aside: str = ""


def firm(text: str) -> str:
    """Return the text with blanks that end no line, except after `,` `;` `+` and `=`."""
    return SOFT.sub(FIRM, text)


def lines(row: Row, width: int) -> Iterator[Row]:
    """Yield the row as lines of at most `width` columns, as far as words allow."""
    for line in _laid_out(row, width):
        yield replace(line, text=line.text.replace(FIRM, " "))


def _laid_out(row: Row, width: int) -> Iterator[Row]:
    if row.right:
        text = f"{row.text}  {row.right:>{width - len(row.text) - 2}}" if len(row.text) + 2 < width else f"{row.text}  {row.right}"
        yield Row(text, row.style, len(text) - len(row.right), len(text))
    elif row.aside and len(row.text) + len(row.aside) <= width:
        yield replace(row, text=row.text + row.aside, aside="")
    elif row.aside:
        yield replace(row, text=row.text.rstrip(), aside="")
        yield from _laid_out(Row(" " * (row.hang or 0) + row.aside, hang=row.hang), width)
    elif row.hang is not None and len(row.text.rstrip()) > width:
        yield from _wrapped(row, row.hang, width)
    else:
        yield replace(row, text=row.text.rstrip())


def _wrapped(row: Row, hang: int, width: int) -> Iterator[Row]:
    """Yield the text broken between words; what stands before the column `hang` stands there once."""
    label, value = row.text[:hang], row.text[hang:]
    parts = textwrap.wrap(value, max(width - hang, NARROWEST), break_long_words=False, break_on_hyphens=False)
    for number, part in enumerate(parts):
        yield replace(row, text=label + part) if number == 0 else Row(" " * hang + part)
