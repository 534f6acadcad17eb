"""The client in a phone's browser: plain ES modules without a build step, which the server serves as they are.

The server computes nothing here. `app/` holds the pages and modules, of which `generate.py` writes the message readers;
`app/recognizer/…` is served from `export/web`, and `make phone` fills `app/vendor`.
"""

from __future__ import annotations

from pathlib import Path

APP = Path(__file__).parent / "app"
"""The folder whose files the server serves below /phone/."""
