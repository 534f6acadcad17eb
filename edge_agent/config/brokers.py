"""Settings of the MQTT brokers, the federation's and Home Assistant's: sections of `edge_agent.config.settings`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import Field, SecretStr, model_validator

from edge_agent.config.section import Section
from gaitway.python310 import Self

PORT, TLS_PORT = 1883, 8883
"""The ports that IANA has registered for MQTT."""


class BrokerPlace(NamedTuple):
    """A broker's address and TLS."""

    host: str
    port: int
    tls: bool = False
    ca_file: Path | None = None
    keepalive_s: int = 30


class AccessSection(Section):
    """A broker's address, and the device's login there."""

    host: str | None = None
    port: int | None = Field(default=None, ge=1, le=65535, description="none: 8883 with TLS, else 1883")
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = Field(default=None, description="its first line is the password")
    tls: bool = Field(default=False, description="encrypt, and require a certificate for `host`")
    ca_file: Path | None = Field(default=None, description="trusted certificates, PEM; none: the system's")

    @model_validator(mode="after")
    def _has_one_password(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file are both set; leave one out")
        return self

    @property
    def place(self) -> BrokerPlace | None:
        """The broker's address in this section; None if it isn't set."""
        if self.host is None:
            return None
        return BrokerPlace(self.host, self.port or (TLS_PORT if self.tls else PORT), self.tls, self.ca_file)


class BrokerSection(AccessSection):
    """The broker for messages; without `host`, the one that the server named when this device enrolled."""

    host: str | None = Field(default=None, description="MQTT broker; none: the one named at enrolment")
    username: str | None = Field(default=None, description="none: the enrolled account, or anonymous")
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
        """The broker's address in this section; None if it isn't set."""
        place = super().place
        return place and place._replace(keepalive_s=self.keepalive_s)


class HomeAssistantSection(AccessSection):
    """Reports recognized activities to Home Assistant through its broker; without `host`, off."""

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
        description="as set in Home Assistant's MQTT integration",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.ca_file is not None and not self.tls:
            raise ValueError("ca_file is set but tls is not: set tls = true, or leave ca_file out")
        if (self.password or self.password_file) and self.username is None:
            raise ValueError("there is a password but no username: set username, or leave the password out")
        return self
