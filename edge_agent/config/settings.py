"""The agent's settings: one class, read from TOML and overridden by GAITWAY_EDGE_<SECTION>_<FIELD>."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from edge_agent.config.brokers import BrokerSection, HomeAssistantSection
from edge_agent.config.section import Address, PasswordHash, PrivacySection, Section, is_loopback
from edge_agent.config.sensors import IioSection, PhoneSection, SensorsSection, WindowsSection
from edge_agent.config.training import ConditionsSection, ModelSection, TrainingSection
from edge_agent.errors import ConfigError
from federation.plan import Name
from federation.protocol.messages import Compression, Precision
from gaitway import plugins
from gaitway.errors import did_you_mean, first_problem
from gaitway.python310 import Self, tomllib

ENVIRONMENT = "GAITWAY_EDGE_"
"""Prefix of the agent's environment variables, such as GAITWAY_EDGE_BROKER_PASSWORD."""


class AgentSection(Section):
    """This device."""

    device: Name = Field(description="this device's id, also its MQTT client id")
    federation: Name = Field(description="the federation that it takes part in")
    data_dir: Path = Field(description="folder for windows, outbox, models; relative to this file")
    plugins: tuple[str, ...] = Field(
        default=(), max_length=64, description="installed packages whose methods, models, sensors … this device may run"
    )
    model: Name | None = Field(
        default=None, description="the plan's model or one of its alternatives; none: the plan's model"
    )
    log_format: Literal["text", "json"] = Field(default="text", description="json: one line per record")
    metrics_port: int | None = Field(
        default=None, ge=1, le=65535, description="port of metrics for Prometheus on 127.0.0.1; none: off"
    )
    page: Address | None = Field(
        default=None,
        description="address of its page, such as 127.0.0.1:8090; other addresses need a password; none: off",
    )
    page_password_hash: PasswordHash | None = Field(
        default=None, description="printed by `page-password`; none: no password"
    )

    @model_validator(mode="after")
    def _page_is_guarded(self) -> Self:
        if self.page and not is_loopback(self.page) and not self.page_password_hash:
            raise ValueError(
                f"page = {self.page!r} can be opened from other machines, so it needs a page_password_hash: "
                f"`python -m edge_agent page-password` makes one; or listen on 127.0.0.1"
            )
        return self


class ServerSection(Section):
    """The server for model downloads and, with HTTP transport, for messages."""

    url: str = Field(pattern=r"^https?://", description="base URL of the server, http:// or https://")
    transport: Literal["mqtt", "http", "auto"] = Field(
        default="mqtt",
        description="mqtt: messages go through [broker]; http: to `url`, if no broker can be reached; auto: http "
        "after three failures to reach the broker, until it is reachable again",
    )
    ca_file: Path | None = Field(default=None, description="the server's trusted certificates, PEM; none: the system's")
    key_file: Path | None = Field(
        default=None,
        description="an API key of the scope `device` for downloading models without enrolment, for trials; "
        "enrolment's key takes precedence",
    )
    timeout_s: float = Field(default=20.0, gt=0, description="seconds without a byte before a download is retried")

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.ca_file is not None and not self.url.startswith("https://"):
            raise ValueError(f"ca_file is set but url is {self.url}: give an https:// url, or leave ca_file out")
        return self


class UploadsSection(Section):
    """How updates travel; the chunk size comes with the announcement."""

    in_flight: int = Field(default=8, ge=1, le=100, description="unacknowledged chunks at a time")
    ack_timeout_s: float = Field(default=15.0, gt=0, description="silence after which an upload restarts")
    precision: Precision = Field(
        default="lossless", description="float16 and int8 are lossy, with a half and a quarter of the bytes"
    )
    compression: Compression = "none"


class Config(Section):
    """All of an agent's settings."""

    agent: AgentSection
    server: ServerSection
    broker: BrokerSection = BrokerSection()
    sensors: SensorsSection = SensorsSection()
    phone: PhoneSection = PhoneSection()
    iio: IioSection = IioSection()
    windows: WindowsSection = WindowsSection()
    training: TrainingSection = TrainingSection()
    conditions: ConditionsSection = ConditionsSection()
    model: ModelSection = ModelSection()
    uploads: UploadsSection = UploadsSection()
    privacy: PrivacySection = PrivacySection()
    home_assistant: HomeAssistantSection = HomeAssistantSection()

    @property
    def sensor_client(self) -> str:
        """The client whose recordings are replayed."""
        return self.sensors.client or self.agent.device


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read a config file, overridden by the environment; relative paths start at the file's folder.

    Raises:
        ConfigError: naming the setting, its value, what is expected, and the nearest known key for an unknown one.
    """
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        hint = "write one with `python -m edge_agent example-config > agent.toml`"
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}; {hint}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return read_config(tree, path, environment)


def read_config(tree: dict[str, Any], path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read what a config file holds, or will hold; see `load`."""
    _overlay(tree, environment)
    _check_keys(tree)
    # before the other sections, which may name a plugin's entry
    plugins.allow(_allowed_plugins(tree))
    try:
        config = Config.model_validate(_without_empty(tree))
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error, input_shown=True, model=Config)}") from error
    return _anchored(config, path.resolve().parent)


def _allowed_plugins(tree: Mapping[str, Any]) -> list[str]:
    """Return [agent] plugins if it is a list of names; validation rejects anything else."""
    agent = tree.get("agent")
    names = agent.get("plugins") if isinstance(agent, Mapping) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list | tuple) else []


def example(
    device: str = "s01_sp", federation: str = "demo", data_dir: str = "s01_sp", url: str = "http://127.0.0.1:8080"
) -> str:
    """Write a commented config file with every setting."""
    lines = ["# A Gaitway device. Commented settings show their default.", ""]
    values = {"device": device, "federation": federation, "data_dir": data_dir, "url": url}
    for section in Config.model_fields:
        kind = _section(section)
        lines += [f"[{section}]  # {(kind.__doc__ or '').strip()}"]
        for name, field in kind.model_fields.items():
            note = f"  # {field.description}" if field.description else ""
            if field.is_required():
                lines.append(f"{name} = {json.dumps(values[name])}{note}")
            else:
                lines.append(f"# {name} = {_toml(field.get_default(call_default_factory=True))}{note}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if value is None:
        return '""'
    if isinstance(value, BaseModel):
        return "{}"
    return json.dumps(value, default=str)


def _section(name: str) -> type[Section]:
    kind = Config.model_fields[name].annotation
    if not (isinstance(kind, type) and issubclass(kind, Section)):
        raise ConfigError(f"{name} is not a section of the config")
    return kind


def _overlay(tree: dict[str, Any], environment: Mapping[str, str]) -> None:
    for key, value in environment.items():
        if not key.startswith(ENVIRONMENT):
            continue
        known = {f"{ENVIRONMENT}{s}_{f}".upper(): (s, f) for s in Config.model_fields for f in _section(s).model_fields}
        if key not in known:
            raise ConfigError(f"environment variable {key} is unknown; {did_you_mean(key, known)}")
        section, field = known[key]
        kind = _section(section).model_fields[field]
        composed = isinstance(kind.get_default(call_default_factory=True), dict | tuple | BaseModel)
        try:
            tree.setdefault(section, {})[field] = json.loads(value) if composed else value
        except ValueError as error:
            raise ConfigError(f"environment variable {key} is not JSON, which is expected: {error}") from error


def _check_keys(tree: Mapping[str, Any]) -> None:
    for section, fields in tree.items():
        if section not in Config.model_fields:
            raise ConfigError(f"unknown section [{section}]; {did_you_mean(section, Config.model_fields)}")
        known = _section(section).model_fields
        for field in fields if isinstance(fields, Mapping) else ():
            if field not in known:
                raise ConfigError(f"unknown setting {field!r} in [{section}]; {did_you_mean(field, known)}")


def _without_empty(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out empty strings: TOML has no null, so the example shows unset values as empty."""
    return {
        section: {name: value for name, value in fields.items() if value != ""}
        if isinstance(fields, Mapping)
        else fields
        for section, fields in tree.items()
    }


def _anchored(config: Config, folder: Path) -> Config:
    """Resolve relative paths from the file's folder."""
    sections = {}
    for name in Config.model_fields:
        section = getattr(config, name)
        paths = {key: folder / value for key, value in section if isinstance(value, Path)}
        sections[name] = section.model_copy(update=paths)
    return config.model_copy(update=sections)
