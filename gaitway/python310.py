"""Parts of Python 3.11's standard library that 3.10 (in JetPack 6) lacks, under their 3.11 names.

Code that runs on devices imports these from here; server and simulation need 3.11. `make check-python310` tests it.
"""

from __future__ import annotations

import sys
from datetime import timezone

if sys.version_info >= (3, 11):
    import tomllib
    from enum import StrEnum
    from typing import Self, Unpack
else:
    from enum import Enum

    import tomli as tomllib
    from typing_extensions import Self, Unpack

    class StrEnum(str, Enum):
        """Enum members that are strings and print as such."""

        __str__ = str.__str__


UTC = timezone.utc

__all__ = ["UTC", "Self", "StrEnum", "Unpack", "tomllib"]
