"""The names of Gaitway's top-level packages, which a user's own file beside a script can hide."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from gaitway.exit_codes import ExitCode

OWN_PACKAGES = (
    *("gaitway", "har_pipeline", "models", "federation", "edge_agent", "aggregator_api", "export", "phone", "sim"),
)


def is_own_module(name: str) -> bool:
    """Whether a dotted module name is one of Gaitway's."""
    return name.partition(".")[0] in OWN_PACKAGES


def hidden_packages() -> dict[str, Path]:
    """Return the files that Python would import in place of our packages, by the package's name."""
    origins = {name: _origin(name) for name in OWN_PACKAGES}
    root = Path(__file__).parent.parent
    return {name: path for name, path in origins.items() if path is not None and path.parent.parent != root}


def refuse_hidden(*names: str) -> None:
    """Refuse to go on where a file hides one of these packages of ours.

    Raises:
        ImportError: naming the file, and what to do.
    """
    hidden = hidden_packages()
    for name in names:
        if name in hidden:
            raise ImportError(hidden_words(name, hidden[name]))


def exit_if_hidden(*names: str) -> None:
    """End a program, with one line, where a file hides one of the packages that it needs."""
    try:
        refuse_hidden(*names)
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(ExitCode.REFUSED) from None


def hidden_words(name: str, path: Path) -> str:
    """Say which file hides a package, and what to do."""
    return f"{path} hides Gaitway's package `{name}`: rename it, or run Python from another folder"


def _origin(name: str) -> Path | None:
    """Return the file of a module, without importing it; None where there is none, or it has none."""
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module is not None else find_spec(name)
    except ValueError:  # a module without a spec
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None
