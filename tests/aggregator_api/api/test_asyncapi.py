"""The AsyncAPI document: checked in, complete, and with examples that its own schemas and our readers take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from aggregator_api.transport import asyncapi
from federation.protocol import messages, topics
from federation.secure_sums import messages as sums
from tests.repository.imports import REPOSITORY

DOCUMENT = asyncapi.document()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]


def examples() -> Iterator[tuple[str, Any]]:
    for message in MESSAGES.values():
        yield from ((message["title"], example["payload"]) for example in message.get("examples", ()))
    for name, schema in SCHEMAS.items():
        yield from ((name, example) for example in schema.get("examples", ()))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from [value["$ref"]] if "$ref" in value else []
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_the_document_is_checked_in() -> None:
    written = (REPOSITORY / "docs" / "asyncapi.json").read_text()
    assert written == asyncapi.text(), "run `python -m aggregator_api asyncapi --out docs/asyncapi.json`"


@pytest.mark.parametrize(("name", "example"), list(examples()), ids=[name for name, _ in examples()])
def test_an_example_is_valid_and_can_be_read(name: str, example: Any) -> None:
    jsonschema.Draft7Validator({**DOCUMENT, "$ref": f"#/components/schemas/{name}"}).validate(example)
    kind = getattr(messages, name, None) or getattr(sums, name)
    assert kind.model_validate_json(json.dumps(example)).model_dump(mode="json") == example


def test_a_wrong_message_is_not_valid() -> None:
    (example,) = MESSAGES["begin"]["examples"]
    schema = jsonschema.Draft7Validator({**DOCUMENT, "$ref": "#/components/schemas/UpdateManifest"})
    for changes in ({"size": -1}, {"sha256": "x"}, {"unknown": 1}, {"precision": "int4"}):
        assert not schema.is_valid({**example["payload"], **changes})


def test_every_reference_leads_somewhere_and_every_field_is_described() -> None:
    found = set(references(DOCUMENT))
    assert len(found) > 40
    for reference in found:
        target: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
    silent = [
        f"{name}.{key}"
        for name, schema in SCHEMAS.items()
        for key, field in schema.get("properties", {}).items()
        if "description" not in field
    ]
    assert silent == []


def test_channels_are_the_topics_of_the_protocol() -> None:
    filled = {
        name: channel["address"].format(federation="walk", device="phone-1", update_id="r1", chunk=0)
        for name, channel in DOCUMENT["channels"].items()
    }
    assert filled["announce"] == topics.announce("walk")
    sent = {name for name, operation in DOCUMENT["operations"].items() if operation["action"] == "send"}
    assert {topics.parse(filled[name]).kind for name in sent} == sent == {"status", "begin", "chunk", "end"}
    assert not any(topics.is_device_topic(filled[name]) for name in filled.keys() - sent)
