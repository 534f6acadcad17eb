"""The errors of this package, all under `FederationError`."""

from __future__ import annotations

from collections.abc import Iterable

from gaitway import errors
from gaitway.errors import GaitwayError, did_you_mean


class FederationError(GaitwayError):
    """Base of every error that `federation` raises for bad input."""


class SettingsError(FederationError, errors.SettingsError):
    """A method, training or plan was described with an unknown name or an impossible value."""


class WireError(FederationError):
    """Bytes from outside are not what they claim to be."""


class UpdateError(FederationError):
    """An update decodes, but does not fit the federation that it was sent to."""


class RoundError(FederationError):
    """An event reached a round in a phase that cannot take it."""


class ImpossibleSumError(RoundError):
    """A secure sum was opened that the clients in it can't have added up to by the plan's rules."""


class RolloutError(FederationError):
    """An event reached a rollout in a phase that cannot take it."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> SettingsError:
    """Name what came, what is known, and the nearest known name."""
    return SettingsError(f"unknown {kind} {name!r}; {did_you_mean(name, sorted(known))}")
