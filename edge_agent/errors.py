"""The errors of this package, all under `AgentError`.

AgentError
├── ConfigError  a setting is unknown, missing or impossible
├── SensorError  the sensor source cannot deliver
├── StoreError   the device's database or its files are not what they should be
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


class BlobError(AgentError):
    """A download failed, or its bytes are not those that were announced."""


class JobError(AgentError):
    """The training process could not do its work."""
