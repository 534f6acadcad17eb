"""Progress that cannot be drawn is printed: at once, and now and then for as long as the work lasts."""

from __future__ import annotations

import io
import time
from io import StringIO

import pytest
from rich.table import Table

from gaitway.terminal import Console, ProgressDisplay, working


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A console whose output goes into a file."""
    monkeypatch.setattr("gaitway.terminal.LINE_EVERY_S", 0.02)
    return Console(file=io.StringIO(), width=80)


def wait_for(console: Console, words: str) -> None:
    assert isinstance(console.file, io.StringIO)
    deadline = time.monotonic() + 30
    while words not in console.file.getvalue():
        assert time.monotonic() < deadline, console.file.getvalue()
        time.sleep(0.005)


def test_work_without_a_bar_is_said_at_once_and_again(piped: Console) -> None:
    with working(piped, "reading") as say:
        wait_for(piped, "reading …\n")
        wait_for(piped, "reading, 0 s\n")
        say("3 of 9: [bold]a.csv[/bold]")
        wait_for(piped, "3 of 9: [bold]a.csv[/bold], 0 s\n")  # a file's name is no markup


def test_a_bar_is_a_line_now_and_then(piped: Console) -> None:
    with ProgressDisplay(console=piped) as bars:
        bars.update(bars.add_task("round 2", total=9), completed=3)
        wait_for(piped, "round 2: 3 of 9, 0 s\n")


def test_it_ends_with_its_work(piped: Console) -> None:
    assert isinstance(piped.file, io.StringIO)
    with pytest.raises(KeyboardInterrupt), working(piped, "reading"):
        raise KeyboardInterrupt
    ended = piped.file.getvalue()
    time.sleep(0.1)
    assert piped.file.getvalue() == ended


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
