"""The errors of this package, all under `SimError`."""

from __future__ import annotations

from gaitway import errors
from gaitway.errors import GaitwayError


class SimError(GaitwayError):
    """Base of every error that `sim` raises for bad input."""


class SettingsError(SimError, errors.SettingsError):
    """The run was described with impossible or contradictory settings."""


class RunDirectoryError(SimError):
    """A run's directory is missing, foreign, or belongs to another configuration."""


class AnalysisError(SimError):
    """A run lacks what an analysis of it needs."""


class EngineError(SimError):
    """A client's work failed, or the process that did it died."""


class ClientStoreError(SimError):
    """The clients' models cannot be kept on the disk: it is full, or the folder cannot be written to."""
