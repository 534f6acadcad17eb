"""The terminal for all commands: prints text unchanged, formats errors alike, and shows progress of long work.

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
"""Columns for pipes and files unless COLUMNS is set, so that each table row stays on one line."""


class Console(rich.console.Console):
    """Rich's console without emoji codes, which would replace `:cd:` or `:ab:` in fingerprints, names and paths.

    Rich wraps tables in pipes and files at 80 columns, in the middle of names, so that they can't be searched; this one
    doesn't.
    """

    is_silenced = False
    """Set by `--quiet`: only errors and warnings are printed."""

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
    """Standard error, even with `--quiet`."""

    is_silenced = property(lambda _: False)

    def __init__(self) -> None:
        super().__init__(stderr=True, soft_wrap=True, highlight=False)


def print_error(words: str) -> None:
    """Print why a program ends."""
    ErrorConsole().print(f"[red]error:[/] {escape(words)}")


def print_warning(words: str) -> None:
    """Print a warning, and continue."""
    ErrorConsole().print(f"[yellow]warning:[/] {escape(words)}")


LINE_EVERY_S = 10.0
"""How often progress is printed where it can't be drawn."""


class PeriodicLines:
    """Prints `lines` periodically, where nothing can be drawn."""

    def __init__(self, print_line: Callable[[str], None], lines: Callable[[], Iterable[str]]) -> None:
        self._print_line, self._lines = print_line, lines
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start printing."""
        if self._thread is None:
            self._thread = run_in_thread("progress", self._print)

    def stop(self) -> None:
        """Stop printing."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _print(self) -> None:
        while not self._ended.wait(LINE_EVERY_S):
            for line in self._lines():
                self._print_line(line)


class ProgressDisplay(rich.progress.Progress):
    """Rich's progress bars, printed as periodic lines in a log or a pipe, where Rich is silent until the end."""

    def __init__(self, *columns: rich.progress.ProgressColumn | str, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._lines = PeriodicLines(self._print_line, self._unfinished)

    def start(self) -> None:
        """Start drawing or printing."""
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
    """Write a bar as text: the description, the progress and the elapsed time."""
    done = f"{task.completed:g}" + (f" of {task.total:g}" if task.total is not None else "")
    return f"{task.description}: {done}, {task.elapsed or 0:.0f} s"


@contextmanager
def working(console: Console, words: str) -> Iterator[Callable[[str], None]]:
    """Show what is running until the block ends, and yield a function that updates the text.

    A terminal shows a spinner; elsewhere a line is printed at once and then periodically.
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
