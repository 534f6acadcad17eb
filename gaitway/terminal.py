"""What commands print to: words stay as they are."""

from __future__ import annotations

from typing import Any

import rich.console


class Console(rich.console.Console):
    """Rich's, which would make pictures of `:cd:` or `:ab:` in a fingerprint, a device's name or a path."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})
