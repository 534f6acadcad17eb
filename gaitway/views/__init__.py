"""The views for people: what a device recognizes, its day, teaching, labels and the federation, as plain ES modules.

They stand on two pages: `edge_agent/page` serves them below /views/, and the server of `phone/app` below views/ of the
app. Both wheels of `deploy/distribution.py` that have such a page have them, as package data of `gaitway`. A view asks
its device by name, `device.ask("teaching")`; api.js says what comes. The agent answers over HTTP (`page/service.py`),
a phone in the page itself (`phone/app/device.js`). base.css and icon.svg are those of the operator's pages too.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
"""The folder of the modules and styles."""
