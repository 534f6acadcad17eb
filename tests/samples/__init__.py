"""Small files of released versions, which today's code must read and mean the same by: `make.py` writes them."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
VERSIONS = tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and path.name[0].isdigit()))
"""Every version that has samples."""
