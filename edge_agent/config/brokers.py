"""Where MQTT brokers listen, the federation's and a Home Assistant's: sections of `edge_agent.config.settings`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import Field, SecretStr, model_validator

from edge_agent.config.section import Section
from gaitway.python310 import Self

PORT, TLS_PORT = 1883, 8883
"""The ports that IANA has registered for MQTT."""


class BrokerPlace(NamedTuple):
    """Where the broker is, and how it is spoken to."""

    host: str
    port: int
    tls: bool = False
    ca_file: Path | None = None
    keepalive_s: int = 30


class AccessSection(Section):
    """A broker's address, and how the device introduces itself there."""

    host: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535, description="none: 8883 with TLS, else 1883")
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = Field(default=None, description="its first line is the password")
    tls: bool = Field(default=False, description="encrypt, and believe only a broker with a certificate for `host`")
    ca_file: Path | None = Field(default=None, description="certificates to believe, PEM; none: the system's")

    @model_validator(mode="after")
    def _has_one_password(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file are both set; leave one out")
        return self

    @property
    def place(self) -> BrokerPlace | None:
        """Where this section says that the broker is; None if it does not."""
        if self.host is None:
            return None
        return BrokerPlace(self.host, self.port or (TLS_PORT if self.tls else PORT), self.tls, self.ca_file)


class BrokerSection(AccessSection):
    """Where messages go; without `host`, to the broker that the server named when this device enrolled."""

    host: str | None = Field(default=None, description="MQTT broker; none: as the server said at enrolment")
    username: str | None = Field(default=None, description="none: as `enrol` was told; not enrolled: anonymous")
    password: SecretStr | None = Field(
        default=None, description="better in password_file or GAITWAY_EDGE_BROKER_PASSWORD"
    )
    keepalive_s: int = Field(default=30, ge=5, le=3600)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.ca_file is not None and not self.tls and self.host is not None:
            raise ValueError("ca_file is set but tls is not: set tls = true, or leave ca_file out")
        if self.port is not None and self.host is None:
            raise ValueError(f"port is {self.port}, but there is no host: name the broker's host, or leave port out")
        return self

    @property
    def place(self) -> BrokerPlace | None:
        """Where this section says that the broker is; None if it does not."""
        place = super().place
        return place and place._replace(keepalive_s=self.keepalive_s)


class HomeAssistantSection(AccessSection):
    """Tells a Home Assistant, through its own broker, what is recognized; without `host` nothing is told."""

    host: str | None = Field(
        default=None, max_length=253, description="the local MQTT broker that Home Assistant uses; none: off"
    )
    username: str | None = Field(default=None, max_length=256, description="none: anonymous")
    password: SecretStr | None = Field(
        default=None, max_length=1024, description="better in password_file or GAITWAY_EDGE_HOME_ASSISTANT_PASSWORD"
    )
    discovery_prefix: str = Field(
        default="homeassistant",
        pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$",
        max_length=64,
        description="as Home Assistant's MQTT integration has it",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.ca_file is not None and not self.tls:
            raise ValueError("ca_file is set but tls is not: set tls = true, or leave ca_file out")
        if (self.password or self.password_file) and self.username is None:
            raise ValueError("there is a password but no username: set username, or leave the password out")
        return self
