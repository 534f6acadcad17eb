"""What Home Assistant takes as discovery of a sensor, written from its documents.

https://www.home-assistant.io/integrations/sensor.mqtt/#configuration-variables,
https://www.home-assistant.io/integrations/binary_sensor.mqtt/#configuration-variables and
https://www.home-assistant.io/integrations/mqtt/#discovery-topic, as of 2025.12. Only keys that Gaitway may use are
here; Home Assistant itself drops a key that it does not know, and with it what was meant.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from gaitway.python310 import Self

TOPIC = re.compile(r"[\w/-]+?/(sensor|binary_sensor)/([a-zA-Z0-9_-]+)/([a-zA-Z0-9_-]+)/config")
"""<discovery_prefix>/<component>/[<node_id>/]<object_id>/config; ids of letters, digits, _ and - alone."""
Text = Annotated[str, Field(min_length=1, max_length=255)]
StateTopic = Annotated[str, Field(pattern=r"^[^+#]+$", max_length=65_535)]
Template = Annotated[str, Field(pattern=r"^\{\{.*\}\}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Device(_Strict):
    """At least one identifier, or connection, is needed."""

    identifiers: list[Text] = Field(min_length=1)
    name: Text
    manufacturer: Text
    model: Text
    sw_version: Text


class Origin(_Strict):
    name: Text
    sw_version: Text


class _Entity(_Strict):
    unique_id: Text
    name: Text
    state_topic: StateTopic
    value_template: Template
    availability_topic: StateTopic
    device: Device
    origin: Origin
    icon: Annotated[str, Field(pattern=r"^mdi:[a-z-]+$")] | None = None
    entity_category: Literal["diagnostic"] | None = None
    json_attributes_topic: StateTopic | None = None
    json_attributes_template: Template | None = None


class Sensor(_Entity):
    device_class: Literal["enum"] | None = None
    options: list[Text] | None = Field(default=None, min_length=1)
    state_class: Literal["measurement"] | None = None
    unit_of_measurement: Literal["%"] | None = None

    @model_validator(mode="after")
    def _options_are_an_enums(self) -> Self:
        """Only an enum has options, each once, and it has neither a unit nor a state class."""
        if (self.options is None) != (self.device_class is None):
            raise ValueError("options and the device class enum go together")
        if self.options and (len({*self.options}) < len(self.options) or self.state_class or self.unit_of_measurement):
            raise ValueError("an enum's options are distinct, and it has no state class and no unit")
        return self


class BinarySensor(_Entity):
    """Its payloads are ON and OFF unless it says others."""

    device_class: Literal["problem"]


def check(topic: str, payload: bytes | str) -> _Entity:
    """Hold a retained config against the documents; raises ValidationError or AssertionError."""
    matched = TOPIC.fullmatch(topic)
    assert matched, topic
    kind = Sensor if matched[1] == "sensor" else BinarySensor
    return TypeAdapter(kind).validate_json(payload)
