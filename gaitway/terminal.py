"""What commands print to: words stay as they are."""

from __future__ import annotations

from typing import Any

import rich.console

PIPED_WIDTH = 200
"""Columns of what goes into a pipe or a file, where COLUMNS does not say: rows of tables stay lines there."""


class Console(rich.console.Console):
    """Rich's, which would make pictures of `:cd:` or `:ab:` in a fingerprint, a device's name or a path.

    Into a pipe or a file it would wrap tables at 80 columns, in the middle of names: nothing there could be searched.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    @property
    def size(self) -> rich.console.ConsoleDimensions:
        """Columns and lines."""
        found = super().size
        is_piped = self._width is None and not self.is_terminal and not self._environ.get("COLUMNS")
        return found._replace(width=PIPED_WIDTH) if is_piped else found

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self.width, self.height = new_size
