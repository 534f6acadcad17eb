"""The one kind of table that reports have: as HTML by templates/parts.html, as Markdown, and on the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import rich.table
from rich import box
from rich.text import Text

_STYLES = ("", "bold", "underline")
_THOUGHT = re.compile(r"[;,] (?!the least)")


class Cell(NamedTuple):
    """One entry: its text, 1 if best or significant, 2 if second, and what stands beside it in small."""

    text: str
    rank: int = 0
    note: str = ""


class ReportTable(NamedTuple):
    """Rows of cells, the first of which names its row; `head` may be empty, and so what stands above and below."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""


def table_of(head: Sequence[str], rows: Iterable[Iterable[object]], title: str = "", note: str = "") -> ReportTable:
    """Make a table of cells, or of plain values."""
    cells = [[value if isinstance(value, Cell) else Cell(str(value)) for value in row] for row in rows]
    return ReportTable(head, cells, title, note)


def markdown_table(table: ReportTable) -> str:
    """Write GitHub's kind of table; `<u>` underlines the second."""
    ruled = ["---", *["---:"] * (len(table.head) - 1)]
    lines = [table.head, ruled, *([_marked(cell) for cell in row] for row in table.rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _marked(cell: Cell) -> str:
    text = escaped(cell.text)
    text = (text, f"**{text}**", f"<u>{text}</u>")[cell.rank]
    return f"{text} ({escaped(cell.note)})" if cell.note else text


def escaped(text: str) -> str:
    """Keep Markdown from reading a text as markup."""
    return re.sub(r"([\\|<*_`[])", r"\\\1", text).replace("\n", " ")


def printed_table(table: ReportTable) -> rich.table.Table:
    """Lay a table out for the terminal: names to the left, numbers, never cut, to the right, notes below, in lines."""
    printed = rich.table.Table(title=table.title, box=box.SIMPLE, title_style="bold", title_justify="left")
    printed.add_column(table.head[0])
    for name in table.head[1:]:
        printed.add_column(name, justify="right", no_wrap=True)
    for row in table.rows:
        printed.add_row(*map(_printed, row))
    return printed


def _printed(cell: Cell) -> Text:
    notes = [Text(part, style="dim") for part in _THOUGHT.split(cell.note) if part]
    return Text("\n").join([Text(cell.text, style=_STYLES[cell.rank]), *notes])
