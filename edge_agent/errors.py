"""The errors of this package, all under `AgentError`.

AgentError
├── ConfigError  a setting is unknown, missing or impossible
├── SensorError  the sensor source cannot deliver
├── StoreError   the device's database or its files are not what they should be
│   ├── DiskFullError  there is no room; nothing was changed (an OSError too)
│   ├── LockedError    another program holds the file; nothing was changed
│   └── DamagedError   the file is no database, or has broken pages
├── MessageError a phone sent something else than a message of Sensor Logger
├── LabelError   a label, or a time to label, that cannot be
├── BlobError    a download failed, or is not what was announced
├── TrustError   what came is not signed by the server that this device trusts, or is out of date
├── EnrolError   the server does not take this device, or not yet
│   └── RevokedError  it took it once, and does not any more
└── JobError     the training process could not do its work
    └── NonRetryableJobError  and would fail again in the same way
        └── UnusableModelError  because of the server's model
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
    """What came is not a message of the Sensor Logger app."""


class LabelError(AgentError):
    """A label that the plan does not have, or a span of time that cannot be labelled."""


class DownloadError(AgentError):
    """A download failed, or its bytes are not those that were announced."""


class TrustError(AgentError):
    """A pointer to a model is not signed by the server that this device trusts, or is out of date."""


class EnrolError(AgentError):
    """The server does not take this device, or not yet."""


class RevokedError(EnrolError):
    """The operator has put this device out; only a token made for it lets it come back."""


class JobError(AgentError):
    """The training process could not do its work."""


class NonRetryableJobError(JobError):
    """The training process could not do its work, and would fail again in the same way."""


class UnusableModelError(NonRetryableJobError):
    """The server's model came as announced, and can't be used: the device says so to the server, signed."""
