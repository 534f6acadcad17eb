"""Gaitway's top-level packages: detects a user's file that shadows one, and says how to install extras.

Gaitway isn't on a package index, so its bare name would find nothing or someone else's package.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from gaitway.errors import ExitCode

OWN_PACKAGES = (
    *("gaitway", "har_pipeline", "models", "federation", "edge_agent", "aggregator_api", "export", "phone", "sim"),
)


def is_own_module(name: str) -> bool:
    """Whether a dotted module name is one of Gaitway's."""
    return name.partition(".")[0] in OWN_PACKAGES


def hidden_packages() -> dict[str, Path]:
    """Return the files that Python would import instead of our packages, by package name."""
    origins = {name: _origin(name) for name in OWN_PACKAGES}
    root = Path(__file__).parent.parent
    return {name: path for name, path in origins.items() if path is not None and path.parent.parent != root}


def refuse_hidden(*names: str) -> None:
    """Raise an error if a file shadows one of these packages.

    Raises:
        ImportError: naming the file, and what to do.
    """
    hidden = hidden_packages()
    for name in names:
        if name in hidden:
            raise ImportError(hidden_words(name, hidden[name]))


def exit_if_hidden(*names: str) -> None:
    """End the program with one line if a file shadows one of the packages that it needs."""
    try:
        refuse_hidden(*names)
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(ExitCode.REFUSED) from None


def hidden_words(name: str, path: Path) -> str:
    """Say which file shadows a package, and what to do."""
    return f"{path} hides Gaitway's package `{name}`: rename it, or run Python from another folder"


def _origin(name: str) -> Path | None:
    """Return a module's file without importing it; None if the module doesn't exist or has no file."""
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module is not None else find_spec(name)
    except ValueError:  # a module without a spec
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def install_command(extra: str) -> str:
    """Return the pip command that adds an extra from the source that this Gaitway was installed from."""
    try:
        noted = json.loads(distribution("gaitway").read_text("direct_url.json") or "{}")  # PEP 610
        url = str(noted["url"])
        is_editable = bool(noted.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return f"pip install 'gaitway[{extra}]'"  # from an index, or never installed
    if is_editable:
        return f"pip install -e '{url2pathname(urlsplit(url).path)}[{extra}]'"
    return f"pip install 'gaitway[{extra}] @ {url}'"
