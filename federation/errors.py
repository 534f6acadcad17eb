"""The errors of this package, all under `FederationError`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from gaitway.errors import GaitwayError


class FederationError(GaitwayError):
    """Base of every error that `federation` raises for bad input."""


class SettingsError(FederationError):
    """A method, training or plan was described with an unknown name or an impossible value."""


class WireError(FederationError):
    """Bytes from outside are not what they claim to be."""


class UpdateError(FederationError):
    """An update decodes, but does not fit the federation that it was sent to."""


class RoundError(FederationError):
    """An event reached a round in a phase that cannot take it."""


class RolloutError(FederationError):
    """An event reached a rollout in a phase that cannot take it."""


def unknown_name(kind: str, came: str, known: Iterable[str]) -> SettingsError:
    """Name what came, what is known, and the nearest known name."""
    names = sorted(known)
    near = difflib.get_close_matches(came, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return SettingsError(f"unknown {kind} {came!r}; known: {', '.join(names)}.{hint}")
