"""What any version has written as a plan, sent as a message or as tensors, today's code reads and means the same."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from federation import wire
from federation.methods import METHODS, method_from_json, method_to_json
from federation.plan import Plan
from federation.protocol import messages
from federation.protocol.signing import Kind, fingerprint, pinned_key, to_sign, unwrap
from federation.records.tree import flatten
from federation.wire.schema import schema_of
from har_pipeline import PipelineSettings
from sim.cli.options import read_plan
from tests.samples.meaning import lost
from tests.samples.messages import FEDERATION, samples, topic_names
from tests.samples.wire import decoded, digest_of, trees


def test_a_plan_means_the_same_in_json_and_toml(sample: Path) -> None:
    values = json.loads((sample / "plan.json").read_text())
    assert lost(values, Plan.model_validate(values).model_dump(mode="json")) == []
    assert lost(values, read_plan(sample / "plan.toml").model_dump(mode="json")) == []
    assert lost(values, tomllib.loads((sample / "plan.toml").read_text())) == []
    assert lost(values["data"]["pipeline"], PipelineSettings.from_json(values["data"]["pipeline"]).to_json()) == []


def test_every_method_has_its_hyper_parameters(sample: Path) -> None:
    for name, values in json.loads((sample / "methods.json").read_text()).items():
        assert name in METHODS
        assert lost(values, method_to_json(method_from_json(values))) == []


@pytest.mark.parametrize("name", samples())
def test_a_message_verifies_and_says_the_same(sample: Path, name: str) -> None:
    if not (sample / "messages" / name).is_file():
        pytest.skip(f"{sample.name} did not have it")
    kind, device = samples()[name].kind, samples()[name].device
    envelope = unwrap((sample / "messages" / name).read_bytes())
    if kind is None:
        assert envelope.signature is None
    else:
        keys = json.loads((sample / "messages" / "keys.json").read_text())
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(keys["device" if kind is Kind.UPDATE else "server"]))
        assert envelope.signature is not None
        key.verify(envelope.signature, to_sign(kind, FEDERATION, device, envelope.body))
    message = messages.read(type(samples()[name].message), envelope.body)
    assert lost(json.loads(envelope.body), message.model_dump(mode="json")) == []


def test_every_message_of_a_version_is_read_by_a_test(sample: Path) -> None:
    assert {path.name for path in (sample / "messages").iterdir()} - {"keys.json"} <= samples().keys()


def test_topics_and_tokens_are_the_same(sample: Path) -> None:
    kept = json.loads((sample / "topics.json").read_text())
    assert lost(kept["topics"], topic_names()) == []
    keys = json.loads((sample / "messages" / "keys.json").read_text())
    assert pinned_key(kept["token"]) == fingerprint(bytes.fromhex(keys["server"]))


def test_uploads_and_a_broadcast_decode_to_the_same_numbers(sample: Path) -> None:
    today = trees()
    folder = sample / "tensors"
    broadcast = wire.decode((folder / "broadcast").read_bytes(), limit_bytes=1 << 20)
    assert schema_of(broadcast) == schema_of(today[0])
    assert list(flatten(broadcast)) == list(flatten(today[0])), "the order of names is part of the wire"
    for name, digest in json.loads((folder / "digests.json").read_text()).items():
        assert digest_of(decoded(folder, name, today)) == digest, name
