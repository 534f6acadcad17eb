"""What can go wrong between a sensor and a window: PipelineError and its three kinds.

PipelineError
├── SourceError    files: not found, not in the published layout, a cell that is no number
│   └── UnpackingError   a file or archive that cannot be unpacked
├── SignalError    samples: broken clocks, infinite values, out of order beyond the reorder window
└── SettingsError  a setting, option, label or name that does not exist or does not fit
    └── LabelError   a word in a file that a description neither names, nor maps, nor ignores
"""

from __future__ import annotations

from gaitway import errors
from gaitway.errors import GaitwayError


class PipelineError(GaitwayError):
    """Anything this package refuses; the message says what came, what was expected and what to do."""


class SourceError(PipelineError):
    """A file or archive is missing or not in the layout that its reader expects."""


class UnpackingError(SourceError):
    """A file or archive is cut off, or cannot be unpacked for another reason; among others it is left out, and said."""


class SignalError(PipelineError):
    """Samples that cannot be put on a time axis."""


class SettingsError(PipelineError, errors.SettingsError):
    """A setting, option or name that does not exist or contradicts another."""


class LabelError(SettingsError):
    """A file's activity is no label of the description; the message says by which key it becomes one."""
