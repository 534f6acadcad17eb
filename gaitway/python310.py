"""What Python 3.10, which JetPack 6 has, lacks of 3.11's standard library, under the names that it has there.

What a device runs imports these from here; server and simulation need 3.11. `make check-python310` holds it.
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
        """Members are their texts, also where they are printed."""

        __str__ = str.__str__


UTC = timezone.utc

__all__ = ["UTC", "Self", "StrEnum", "Unpack", "tomllib"]
