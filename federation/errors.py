"""The errors of this package, all under `FederationError`."""

from __future__ import annotations

from collections.abc import Iterable

from gaitway import errors
from gaitway.errors import GaitwayError, did_you_mean


class FederationError(GaitwayError):
    """Base of every error that `federation` raises for bad input."""


class SettingsError(FederationError, errors.SettingsError):
    """A method, training or plan has an unknown name or an impossible value."""


class WireError(FederationError):
    """Bytes from outside are invalid."""


class UpdateError(FederationError):
    """An update decodes, but does not fit the federation that it was sent to."""


class RoundError(FederationError):
    """An event doesn't fit the round's phase."""


class ImpossibleSumError(RoundError):
    """An opened secure sum is impossible for its clients under the plan's rules."""


class RolloutError(FederationError):
    """An event doesn't fit the rollout's phase."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> SettingsError:
    """Name the unknown name, the known ones, and the nearest."""
    return SettingsError(f"unknown {kind} {name!r}; {did_you_mean(name, sorted(known))}")
