"""What goes into a pipe can be searched: a row of a table is a line there."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.table import Table

from gaitway.terminal import Console

NAMES = ["personalization, macro-F1 (%)"] * 4


def printed(**options: object) -> list[str]:
    file = StringIO()
    table = Table(*NAMES)
    table.add_row(*NAMES)
    Console(file=file, **options).print(table)
    return [line for line in file.getvalue().splitlines() if "personalization" in line]


def test_rows_stay_whole_in_a_pipe_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert [line.count(NAMES[0]) for line in printed()] == [4, 4]
    assert not any(NAMES[0] in line for line in printed(width=60))
    monkeypatch.setenv("COLUMNS", "60")
    assert not any(NAMES[0] in line for line in printed())


def test_a_terminal_has_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    console = Console(file=StringIO(), force_terminal=True)
    console.size = (90, 30)
    assert console.width == 90
