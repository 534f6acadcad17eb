"""The errors of this package, all under `AgentError`.

AgentError
├── ConfigError  a setting is unknown, missing or impossible
├── SensorError  the sensor source cannot deliver
├── StoreError   the device's database or its files are not what they should be
│   ├── DiskFullError  there is no room; nothing was changed (an OSError too)
│   └── DamagedError   the file is no database, or has broken pages
├── LabelError   a label, or a time to label, that cannot be
├── BlobError    a download failed, or is not what was announced
└── JobError     the training process could not do its work
"""


class AgentError(Exception):
    """Base of every error that `edge_agent` raises on purpose."""


class ConfigError(AgentError):
    """A setting is unknown, missing or impossible."""


class SensorError(AgentError):
    """The sensor source cannot deliver windows."""


class StoreError(AgentError):
    """The device's database or one of its files is not what it should be."""


class DiskFullError(StoreError, OSError):
    """There is no room on the disk; nothing was changed."""


class DamagedError(StoreError):
    """A database's file is not one, or has broken pages."""


class LabelError(AgentError):
    """A label that the plan does not have, or a span of time that cannot be labelled."""


class BlobError(AgentError):
    """A download failed, or its bytes are not those that were announced."""


class JobError(AgentError):
    """The training process could not do its work."""
