"""Settings of the device's data: the sensor source, its options, and how much is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from edge_agent.config.section import Section
from gaitway.errors import did_you_mean
from gaitway.plugins import EntryTable, hint

MIN_TOKEN = 16
"""Characters of a token in a URL; `secrets.token_urlsafe(16)` gives 22."""

SOURCES: EntryTable[str] = EntryTable(
    "sensors",
    {
        "recording": "edge_agent.sensors.replay:RecordingSource",
        "csv": "edge_agent.sensors.files:CsvSource",
        "iio": "edge_agent.sensors.iio:IioSource",
        "images": "edge_agent.sensors.images:ImageSource",
        "sensor_logger_http": "edge_agent.sensors.sensor_logger.source:PhoneSource",
        "sensor_logger_mqtt": "edge_agent.sensors.sensor_logger.source:PhoneSource",
        "app_export": "edge_agent.sensors.files:ExportSource",
    },
    load=lambda entry: entry.value,  # imported where it is used
)
"""The sensor sources by name: module and class. A new one is one file and one entry here."""


def _known_source(name: str) -> str:
    if name not in SOURCES:
        raise ValueError(f"unknown source; {did_you_mean(name, SOURCES)}{hint('sensors', name)}")
    return name


SourceName = Annotated[str, AfterValidator(_known_source)]


class SensorsSection(Section):
    """Where samples come from."""

    source: SourceName = Field(
        default="recording",
        description="recording: replay a data set's client; csv: files that `description` describes; iio: see [iio]; "
        "app_export: what phones' apps write; images: a folder of images; sensor_logger_*: see [phone]",
    )
    dataset: str = Field(default="synthetic", description="recording: a name that har_pipeline knows")
    root: Path | None = Field(default=None, description="recording: the data set's folder; synthetic needs none")
    client: str | None = Field(
        default=None, description="recording: none is the device's own id; csv: none takes every client"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of the data set's reader, or of a source without its own section"
    )
    path: Path | None = Field(
        default=None,
        description="csv, app_export: a file, or a folder with everything below it; images: a folder with "
        "one folder for each class, or with `images` and `masks`",
    )
    description: Path | None = Field(
        default=None, description="csv: description of the files, written by `python -m har_pipeline describe PATH`"
    )
    replay_speed: Literal["max"] | float = Field(default="max", description="max, or times real time, such as 1.0")


class PhoneSection(Section):
    """The Sensor Logger app on a phone; see docs/phones.md."""

    listen: str = Field(
        default="127.0.0.1", description="http: address to listen on; 0.0.0.0 for phones in the network"
    )
    port: int = Field(default=8765, ge=0, le=65535, description="http: port; 0 takes any free one")
    token: SecretStr | None = Field(
        default=None, description="http: at least 16 characters in the URL, or their sha256:…; see docs/phones.md"
    )
    tls_cert: Path | None = Field(default=None, description="http: certificate chain (PEM); none: plain HTTP")
    tls_key: Path | None = Field(default=None, description="http: its private key (PEM)")
    max_body_kb: int = Field(default=2048, ge=16, le=65_536, description="maximum size of a message")
    topic: str = Field(default="sensor-logger", min_length=1, max_length=256, description="mqtt: the app's topic")
    mqtt_host: str | None = Field(default=None, description="mqtt: the phone's broker; none: as [broker]")
    mqtt_port: int = Field(default=1883, ge=1, le=65535, description="mqtt: port of mqtt_host")
    mqtt_username: str | None = Field(default=None, description="mqtt: user name at mqtt_host; none: anonymous")
    mqtt_password: SecretStr | None = Field(
        default=None, description="mqtt: better set as GAITWAY_EDGE_PHONE_MQTT_PASSWORD"
    )
    mqtt_ca: Path | None = Field(default=None, description="mqtt: certificate authority of mqtt_host; none: no TLS")
    platform: Literal["android", "ios", "standardised"] = Field(
        default="android",
        description="sign convention of the phone's data; standardised: the app's setting of that name is on",
    )
    device_id: str | None = Field(default=None, description="the app's deviceId; none: any phone, one at a time")
    annotations: dict[str, str] = Field(default_factory=dict, description="activity of each annotation text")
    stop_annotations: tuple[str, ...] = Field(default=("stop", "end"), description="annotations that end an activity")
    reorder_s: float = Field(default=2.0, ge=0, le=30, description="how late a sample may arrive")

    @model_validator(mode="after")
    def _complete(self) -> PhoneSection:
        if self.token is not None and len(self.token) < MIN_TOKEN:
            raise ValueError(f"a token of {len(self.token)} characters can be guessed; use at least {MIN_TOKEN}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together; set both or neither")
        return self


class IioSection(Section):
    """Sensors of this board under Linux Industrial I/O, for source = "iio"."""

    root: Path = Field(default=Path("/sys/bus/iio/devices"), description="folder where the kernel lists sensors")
    rate_hz: float = Field(default=100.0, ge=50, le=1000, description="readings of both sensors per second")
    accelerometer: str | None = Field(default=None, description="its folder, such as iio:device0; none: the first one")
    gyroscope: str | None = Field(default=None, description="its folder; none: the first one")


class WindowsSection(Section):
    """How many windows or images are kept; beyond that, the oldest of the largest class are deleted first."""

    max_labelled: int = Field(default=20_000, ge=1)
    max_unlabelled: int = Field(default=20_000, ge=0, description="about seven hours of wear; 0 keeps none")
    max_age_days: float = Field(default=365.0, gt=0, description="age at which labelled windows are deleted")
    max_unlabelled_age_days: float = Field(default=14.0, gt=0)
    max_mb: float = Field(
        default=256.0,
        gt=0,
        description="both kinds together, about 4.2 kB per window; unlabelled ones are deleted first",
    )
    min_free_mb: float = Field(default=64.0, ge=0, description="collecting pauses while the disk has less free space")
