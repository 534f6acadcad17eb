"""What commands print to: words stay as they are, errors look alike, and long work is never silent.

Progress is drawn on a terminal, and printed as lines in a log or a pipe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import rich.console
import rich.progress
from rich.markup import escape
from rich.text import Text

from gaitway.threads import run_in_thread

PIPED_WIDTH = 200
"""Columns of what goes into a pipe or a file, where COLUMNS does not say: rows of tables stay lines there."""


class Console(rich.console.Console):
    """Rich's, which would make pictures of `:cd:` or `:ab:` in a fingerprint, a device's name or a path.

    Into a pipe or a file it would wrap tables at 80 columns, in the middle of names: nothing there could be searched.
    """

    is_silenced = False
    """Set by `--quiet`: nothing is printed, but for errors and warnings."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    @property
    def quiet(self) -> bool:
        """Whether nothing is printed."""
        return self._is_quiet or self.is_silenced

    @quiet.setter
    def quiet(self, is_quiet: bool) -> None:
        self._is_quiet = is_quiet

    @property
    def size(self) -> rich.console.ConsoleDimensions:
        """Columns and lines."""
        found = super().size
        is_piped = self._width is None and not self.is_terminal and not self._environ.get("COLUMNS")
        return found._replace(width=PIPED_WIDTH) if is_piped else found

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self.width, self.height = new_size


class ErrorConsole(Console):
    """Standard error, whatever is silenced."""

    is_silenced = property(lambda _: False)

    def __init__(self) -> None:
        super().__init__(stderr=True, soft_wrap=True, highlight=False)


def print_error(words: str) -> None:
    """Say why a program ends, as all programs do."""
    ErrorConsole().print(f"[red]error:[/] {escape(words)}")


def print_warning(words: str) -> None:
    """Say what is to be known, and go on."""
    ErrorConsole().print(f"[yellow]warning:[/] {escape(words)}")


LINE_EVERY_S = 10.0
"""How often progress is printed where it cannot be drawn."""


class PeriodicLines:
    """Prints what `lines` gives, now and then: for where nothing can be drawn."""

    def __init__(self, print_line: Callable[[str], None], lines: Callable[[], Iterable[str]]) -> None:
        self._print_line, self._lines = print_line, lines
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to print."""
        if self._thread is None:
            self._thread = run_in_thread("progress", self._print)

    def stop(self) -> None:
        """Print no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _print(self) -> None:
        while not self._ended.wait(LINE_EVERY_S):
            for line in self._lines():
                self._print_line(line)


class ProgressDisplay(rich.progress.Progress):
    """Rich's, which says nothing until the end in a log or a pipe: there each bar is a line, now and then."""

    def __init__(self, *columns: rich.progress.ProgressColumn | str, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._lines = PeriodicLines(self._print_line, self._unfinished)

    def start(self) -> None:
        """Begin to draw, or to print."""
        super().start()
        if not self.console.is_terminal and not self.disable:
            self._lines.start()

    def stop(self) -> None:
        """Draw or print the last state."""
        self._lines.stop()
        super().stop()

    def _print_line(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True, highlight=False)

    def _unfinished(self) -> list[str]:
        return [progress_line(task) for task in self.tasks if task.visible and not task.finished]


def progress_line(task: rich.progress.Task) -> str:
    """Write a bar as words: what is done, how much of it, and for how long."""
    done = f"{task.completed:g}" + (f" of {task.total:g}" if task.total is not None else "")
    return f"{task.description}: {done}, {task.elapsed or 0:.0f} s"


@contextmanager
def working(console: Console, words: str) -> Iterator[Callable[[str], None]]:
    """Say what is at work as long as the block runs, and give a function that says it anew.

    A terminal shows it with a spinner; elsewhere it is a line at once, and one now and then.
    """
    shown, began = [words], monotonic()

    def again(changed: str) -> None:
        shown[0] = changed

    if console.is_terminal:
        with console.status(Text(words)) as status:
            yield lambda changed: status.update(Text(changed))
        return

    def print_line(line: str) -> None:
        console.print(Text(line), soft_wrap=True, highlight=False)

    print_line(f"{words} …")
    lines = PeriodicLines(print_line, lambda: [f"{shown[0]}, {monotonic() - began:.0f} s"])
    lines.start()
    try:
        yield again
    finally:
        lines.stop()
