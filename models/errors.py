"""Errors of `models`: ModelError > UnknownModelError, OptionError, CheckpointError."""

from __future__ import annotations

from gaitway.errors import GaitwayError


class ModelError(GaitwayError):
    """Base of every error that this package raises on purpose."""


class UnknownModelError(ModelError):
    """The name is not in `models.MODELS`."""


class OptionError(ModelError):
    """An option is unknown or out of its range."""


class CheckpointError(ModelError):
    """A checkpoint file is damaged, foreign, or does not fit the model that it names."""
