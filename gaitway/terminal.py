"""What commands print to: words stay as they are, and errors have one form."""

from __future__ import annotations

from typing import Any

import rich.console
from rich.markup import escape

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

    is_silenced = property(lambda _: False)  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(stderr=True, soft_wrap=True, highlight=False)


def print_error(words: str) -> None:
    """Say why a program ends, as all programs do."""
    ErrorConsole().print(f"[red]error:[/] {escape(words)}")


def print_warning(words: str) -> None:
    """Say what is to be known, and go on."""
    ErrorConsole().print(f"[yellow]warning:[/] {escape(words)}")
