"""The errors of this package, all under `AgentError`.

AgentError
├── ConfigError  a setting is unknown, missing or invalid ├── SensorError  the sensor source can't deliver ├──
StoreError   the device's database or its files are not what they should be │   ├── DiskFullError  the disk is full;
nothing was changed (an OSError too) │   ├── LockedError    another program holds the file; nothing was changed │   └──
DamagedError   the file is no database, or has broken pages ├── MessageError a phone's message isn't from Sensor Logger
├── LabelError   a label, or a time to label, is invalid ├── BlobError    a download failed, or isn't what was announced
├── TrustError   a message isn't signed by the trusted server, or is out of date ├── EnrolError   the server doesn't
accept this device, or not yet │   └── RevokedError  the server no longer accepts the device └── JobError the training
process failed └── NonRetryableJobError  and would fail again in the same way └── UnusableModelError because of the
server's model
"""

from __future__ import annotations

from gaitway.errors import GaitwayError


class AgentError(GaitwayError):
    """Base of every error that `edge_agent` raises on purpose."""


class ConfigError(AgentError):
    """A setting is unknown, missing or impossible."""


class SensorError(AgentError):
    """The sensor source cannot deliver windows."""


class StoreError(AgentError):
    """The device's database or one of its files is not what it should be."""


class DiskFullError(StoreError, OSError):
    """There is no room on the disk; nothing was changed."""


class LockedError(StoreError):
    """Another program holds a database's file; nothing was changed."""


class DamagedError(StoreError):
    """A database's file is not one, or has broken pages."""


class MessageError(AgentError):
    """A message isn't from the Sensor Logger app."""


class LabelError(AgentError):
    """A label isn't in the plan, or a time span can't be labelled."""


class DownloadError(AgentError):
    """A download failed, or its bytes are not those that were announced."""


class TrustError(AgentError):
    """A pointer to a model is not signed by the server that this device trusts, or is out of date."""


class EnrolError(AgentError):
    """The server doesn't accept this device, or not yet."""


class RevokedError(EnrolError):
    """The operator revoked this device; only a token made for it lets it return."""


class JobError(AgentError):
    """The training process could not do its work."""


class NonRetryableJobError(JobError):
    """The training process could not do its work, and would fail again in the same way."""


class UnusableModelError(NonRetryableJobError):
    """The server's model arrived as announced but can't be used; the device reports this to the server, signed."""
