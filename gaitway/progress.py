"""Progress of long work, which is never silent: drawn on a terminal, printed as lines in a log or a pipe."""

from __future__ import annotations

import threading
from typing import Any

import rich.progress
from rich.text import Text

from gaitway.threads import run_in_thread

LINE_EVERY_S = 10.0
"""How often progress is printed where it cannot be drawn."""


class ProgressDisplay(rich.progress.Progress):
    """Rich's, which says nothing until the end in a log or a pipe: there each bar is a line, now and then."""

    def __init__(self, *columns: rich.progress.ProgressColumn | str, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to draw, or to print."""
        super().start()
        if not self.console.is_terminal and not self.disable and self._thread is None:
            self._thread = run_in_thread("progress", self._print_lines)

    def stop(self) -> None:
        """Draw or print the last state."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        super().stop()

    def _print_lines(self) -> None:
        while not self._ended.wait(LINE_EVERY_S):
            for task in self.tasks:
                if task.visible and not task.finished:
                    self.console.print(Text(progress_line(task)), soft_wrap=True, highlight=False)


def progress_line(task: rich.progress.Task) -> str:
    """Write a bar as words: what is done, how much of it, and for how long."""
    done = f"{task.completed:g}" + (f" of {task.total:g}" if task.total is not None else "")
    return f"{task.description}: {done}, {task.elapsed or 0:.0f} s"
