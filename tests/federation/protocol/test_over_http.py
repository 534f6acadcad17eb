"""The HTTP transport's test vectors, which clients in other languages are held to as well."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.errors import WireError
from federation.protocol import topics
from federation.protocol.over_http import LINE_BYTES, EventReader, path_of, stream_path
from federation.protocol.signing import Kind, to_sign, unwrap, wrap

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "http_transport.json").read_text())
WHO = VECTORS["federation"], VECTORS["device"]
PAIR = Ed25519PrivateKey.from_private_bytes(base64.b64decode(VECTORS["key_pair"]["seed"]))


@pytest.mark.parametrize(
    ("kind", "name", "field"),
    [(Kind.TOKEN, "token_request", "issued_at_ms"), (Kind.CLAIM, "claim_request", "issued_at")],
)
def test_what_proves_itself_is_signed_over_these_bytes(kind: Kind, name: str, field: str) -> None:
    given = VECTORS[name]
    message = to_sign(kind, *WHO, str(given[field]).encode())
    assert message.decode() == given["signed"]
    assert base64.b64encode(PAIR.sign(message)).decode() == given["signature"]
    assert base64.b64encode(PAIR.public_key().public_bytes_raw()).decode() == VECTORS["key_pair"]["public_key"]


def test_a_manifest_is_sent_with_its_signature_before_it() -> None:
    given = VECTORS["signed_manifest"]
    sent = wrap(Kind.UPDATE, *WHO, given["body"].encode(), PAIR.sign)
    assert sent.decode() == given["sent"]
    assert unwrap(sent).body.decode() == given["body"]


def test_paths_are_those_of_the_topics() -> None:
    paths = VECTORS["paths"]
    assert stream_path(*WHO) == paths["messages"]
    assert path_of(topics.status(*WHO)) == paths["status"]
    assert path_of(topics.update(*WHO, "u1", "chunk", 7)) == paths["chunk 7 of u1"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_stream_is_read_as_these_events(line_end: str) -> None:
    reader, found = EventReader(), []
    for line in VECTORS["stream"]["text"].split("\n"):
        if event := reader.take((line + line_end).encode()):
            found.append({"last_event_id": event.id, "event": event.name, "data": event.data.decode()})
    assert found == VECTORS["stream"]["events"]


def test_an_event_that_no_message_can_be_is_not_kept() -> None:
    reader, line = EventReader(), b"data: " + b"x" * (LINE_BYTES // 2) + b"\n"
    reader.take(line)
    with pytest.raises(WireError, match="no message is so large"):
        reader.take(line)
