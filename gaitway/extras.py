"""How an extra is installed beside the Gaitway that runs.

No package index has Gaitway: a name alone would find nothing, or somebody else's package.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_command(extra: str) -> str:
    """Return the pip command that adds an extra, from the folder or file that this Gaitway was installed from."""
    try:
        noted = json.loads(distribution("gaitway").read_text("direct_url.json") or "{}")  # PEP 610
        url = str(noted["url"])
        is_editable = bool(noted.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return f"pip install 'gaitway[{extra}]'"  # from an index, or never installed
    if is_editable:
        return f"pip install -e '{url2pathname(urlsplit(url).path)}[{extra}]'"
    return f"pip install 'gaitway[{extra}] @ {url}'"
