"""The AsyncAPI document of the devices' protocol: topics, and every message with its fields, limits and an example.

Written from a device's side: it receives what the server sends. `python -m aggregator_api asyncapi` prints it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from federation.plan import ModelSpec, Plan, TrainingConfig
from federation.protocol import messages, over_http, topics
from federation.protocol.messages import Announcement, BlobPointer, SumOrder
from federation.protocol.signing import Kind
from federation.secure_sums import messages as sums
from federation.secure_sums.masks import TAG_BYTES
from federation.secure_sums.shamir import SHARE_BYTES

REFERENCE = "#/components/schemas/{model}"
INSTANCE, FEDERATION, DEVICE, ROUND = "5f" * 16, "walk", "phone-1", 3
NOW = 1_790_000_000
PARAMETERS = {
    "federation": "Name of the federation.",
    "device": "Id of the device; its account at the broker may use no other's topics.",
    "update_id": "Id of the update, as in its manifest.",
    "chunk": "Number of the chunk, from 0.",
}


class TopicDescription(NamedTuple):
    """A topic, who publishes there, and what; `example` is None where it's bytes."""

    name: str
    topic: str
    summary: str
    example: BaseModel | None = None
    signed: Kind | None = None
    is_retained: bool = False
    is_from_device: bool = False


def document() -> dict[str, Any]:
    """Return the document."""
    info = {
        "title": "Gaitway, devices",
        "version": topics.ROOT.rpartition("v")[2],
        "description": ABOUT,
        "license": {"name": "Apache-2.0"},
    }
    broker = {
        "host": "{host}:8883",
        "protocol": "secure-mqtt",
        "protocolVersion": "3.1.1",
        "variables": {"host": {"description": "The broker's name; enrolment tells a device."}},
        "security": [{"$ref": "#/components/securitySchemes/account"}],
    }
    account = {"type": "userPassword", "description": "The device's account, which it gets when it enrols."}
    channels = _channels()
    return {
        "asyncapi": "3.0.0",
        "info": info,
        "defaultContentType": "application/json",
        "servers": {"broker": broker},
        "channels": {channel.name: _described_channel(channel) for channel in channels},
        "operations": {channel.name: _operation(channel) for channel in channels},
        "components": {
            "messages": {channel.name: _message(channel) for channel in channels},
            "schemas": _schemas(),
            "securitySchemes": {"account": account},
        },
    }


def text() -> str:
    """Return the document as it is checked in."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


ABOUT = f"""\
What a device and the server say to each other over MQTT 3.1.1. docs/protocol.md has the rules; over HTTP the messages
are the same. A message has at most {messages.MESSAGE_BYTES // 1024} KiB, and unknown keys are refused. Where a message
says `x-signed`, the payload is `gaitway-signed/1 `, the base64 of an ed25519 signature, a line break and the JSON.
Fields say their unit if they have one. Bodies of `SumOrder` and the bytes of updates with `sum` are the messages from
`SumRequest` to `RevealedShares`."""


def _channels() -> tuple[TopicDescription, ...]:
    place = ("FEDERATION", "DEVICE")
    update = (*place, "UPDATE-ID")
    signed = over_http.kinds_of(*place)
    announce, invitation, offer, ack, notice = signed
    return (
        TopicDescription(
            "announce", announce, "What the federation is doing.", _announcement(), signed[announce], True
        ),
        TopicDescription(
            "invitation", invitation, "A round for this device, and its model.", _invitation(), signed[invitation], True
        ),
        TopicDescription("offer", offer, "A rollout for this device's group.", _offer(), signed[offer], True),
        TopicDescription(
            "acknowledgement", ack, "The server's answer about one update.", _acknowledgement(), signed[ack]
        ),
        TopicDescription("notice", notice, "Another session uses this device's name.", _notice(), signed[notice]),
        TopicDescription(
            "status",
            topics.status(*place),
            "The device's state; `offline` is its last will.",
            _status(),
            is_from_device=True,
        ),
        TopicDescription(
            "begin",
            topics.update(*update, "begin"),
            "An update's manifest.",
            _manifest(),
            Kind.UPDATE,
            is_from_device=True,
        ),
        TopicDescription(
            "chunk", topics.update(*update, "chunk", "CHUNK"), "A part of the update's bytes.", is_from_device=True
        ),
        TopicDescription("end", topics.update(*update, "end"), "All chunks were sent; no bytes.", is_from_device=True),
    )


def _described_channel(channel: TopicDescription) -> dict[str, Any]:
    address = channel.topic
    for parameter in PARAMETERS:
        address = address.replace(parameter.upper().replace("_", "-"), f"{{{parameter}}}")
    found = {name: {"description": words} for name, words in PARAMETERS.items() if f"{{{name}}}" in address}
    return {
        "address": address,
        "title": channel.summary,
        "parameters": found,
        "messages": {channel.name: {"$ref": f"#/components/messages/{channel.name}"}},
    }


def _operation(channel: TopicDescription) -> dict[str, Any]:
    return {
        "action": "send" if channel.is_from_device else "receive",
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "summary": f"{'Device to server' if channel.is_from_device else 'Server to device'}: {channel.summary}",
        "bindings": {"mqtt": {"qos": 1, "retain": channel.is_retained, "bindingVersion": "0.2.0"}},
    }


def _message(channel: TopicDescription) -> dict[str, Any]:
    if channel.example is None:
        most = 1 << 20 if channel.name == "chunk" else 0
        payload = {"type": "string", "format": "binary", "maxLength": most}
        return {"contentType": "application/octet-stream", "payload": payload}
    name = type(channel.example).__name__
    found = {"title": name, "payload": {"$ref": REFERENCE.format(model=name)}, "examples": [_example(channel.example)]}
    return {**found, "x-signed": channel.signed} if channel.signed else found


def _example(message: BaseModel) -> dict[str, Any]:
    return {"payload": message.model_dump(mode="json")}


def _schemas() -> dict[str, Any]:
    """Return the JSON Schemas of all messages, as draft 7 has them, which AsyncAPI's schemas are made of."""
    examples = [*(channel.example for channel in _channels() if channel.example), *_status_parts(), *_sum_messages()]
    kinds = dict.fromkeys(type(example) for example in examples)
    _, schema = models_json_schema([(kind, "validation") for kind in kinds], ref_template=REFERENCE)
    found: dict[str, Any] = json.loads(json.dumps(schema["$defs"]), object_hook=_as_draft_7)
    for example in (*_status_parts(), *_sum_messages()):
        found[type(example).__name__]["examples"] = [example.model_dump(mode="json")]
    return found


def _as_draft_7(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a schema in the words of draft 7; bounds of bytes become those of their base64."""
    if schema.get("format") == "base64url":
        del schema["format"]
        bounds: dict[str, Any] = {key: -(-schema[key] // 3) * 4 for key in ("minLength", "maxLength") if key in schema}
        schema |= {"contentEncoding": "base64", "pattern": "^[A-Za-z0-9_-]*=*$", **bounds}
    if "prefixItems" in schema:
        schema["items"] = schema.pop("prefixItems")
    return schema


# ---- examples


def _sha256(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def _pointer(word: str) -> BlobPointer:
    return BlobPointer(sha256=_sha256(word), size=272_344, url=f"/v1/blobs/{_sha256(word)}")


def _announcement() -> Announcement:
    plan = Plan(
        labels=("sitting", "walking"),
        model=ModelSpec(name="har_cnn"),
        method={"name": "fedavg"},
        training=TrainingConfig(classes=2),
    )
    return Announcement(
        federation=FEDERATION,
        instance=INSTANCE,
        serial=41,
        state="collecting",
        round=ROUND,
        invited=8,
        deadline=NOW + 600.0,
        plan=plan,
        model=_pointer("model"),
        created=float(NOW),
        expires=NOW + 30 * 86_400,
    )


def _invitation() -> messages.Invitation:
    return messages.Invitation(instance=INSTANCE, round=ROUND, model=_pointer("model"))


def _offer() -> messages.Offer:
    return messages.Offer(instance=INSTANCE, rollout=2)


def _acknowledgement() -> messages.Acknowledgement:
    manifest = _manifest()
    return messages.Acknowledgement(update_id=manifest.update_id, nonce=manifest.nonce, status="send", next_chunk=1)


def _notice() -> messages.Notice:
    return messages.Notice(session="0f3c9a", reason="another program uses the name phone-1")


def _status() -> messages.DeviceStatus:
    release = messages.ReleaseReport(instance=INSTANCE, rollout=2, answer="adopted", score=0.91)
    return messages.DeviceStatus(state="ready", round=2, examples=412, release=release, session="0f3c9a", number=7)


def _manifest() -> messages.UpdateManifest:
    sha256 = _sha256("update")
    return messages.UpdateManifest(
        update_id=f"r{ROUND}-{DEVICE}-{sha256[:16]}",
        federation=FEDERATION,
        instance=INSTANCE,
        client=DEVICE,
        round=ROUND,
        method="fedavg",
        base_version=_sha256("model"),
        examples=412,
        steps=7,
        class_counts=(180, 232),
        size=272_344,
        sha256=sha256,
        chunk_bytes=131_072,
        nonce="b7e23ec29af22b0b",
        created=float(NOW),
        metrics={"loss": 0.41, "macro_f1_after": 0.9},
    )


def _status_parts() -> tuple[BaseModel, ...]:
    """Return an example of each message that a status carries as signed text, and of what is nested."""
    return (
        messages.PlanRefusal(instance=INSTANCE, serial=41, reason="min_devices = 5, and this device requires 20"),
        messages.ModelRefusal(instance=INSTANCE, model=_sha256("model"), reason="head/weight holds NaN"),
        messages.AdoptionReport(
            instance=INSTANCE, round=2, source="global", answer="adopted", score=0.91, trivial=0.36
        ),
    )


def _sum_messages() -> tuple[BaseModel, ...]:
    """Return an example of each message of a secure sum, in their order."""
    request, key, share, tag = (hashlib.sha256(word).digest() for word in (b"request", b"key", b"share", b"tag"))
    keys = sums.PublicKeys(request=request, device=DEVICE, mask_key=key, channel_key=key, seed_commitment=tag)
    listed = tuple(
        sums.ListedMember(device=f"phone-{number}", identity=key, keys=sums.written(keys))
        for number in range(1, sums.MIN_MEMBERS + 1)
    )
    everybody = tuple(range(sums.MIN_MEMBERS))
    sealed = b"s" * (2 * SHARE_BYTES + TAG_BYTES)
    signature = sums.MemberSignature(member=0, signature=key + tag)
    owned = sums.OwnedShare(owner=1, share=share[:1] * SHARE_BYTES)
    digest = request[: sums.SHARE_DIGEST_BYTES]
    return (
        SumOrder(kind="included", body=sums.written(_included(request, everybody)).decode()),
        sums.SumRequest(
            federation=FEDERATION,
            instance=INSTANCE,
            round=ROUND,
            attempt=request,
            length=68_086,
            bits=32,
            layout=tag,
            min_members=sums.MIN_MEMBERS,
            colluding=100,
            lost=200,
        ),
        keys,
        sums.MemberList(request=request, members=listed),
        sums.EncryptedShares(members=request, sealed=(sealed,), mask_key_digests=(digest,), seed_digests=(digest,)),
        sums.DeliveredShares(members=request, dealers=everybody, shares=(sums.SealedShare(sender=1, sealed=sealed),)),
        sums.MaskedVector(members=request, dealers=sums.dealers_digest(everybody), sha256=tag),
        _included(request, everybody),
        sums.Confirmation(included=request, signature=signature.signature),
        sums.SignatureList(included=request, signatures=(signature,)),
        sums.ConfirmedList(included=request, signatures=(signature,), heads=(sums.SignedHead(member=1, head=b"head"),)),
        sums.RevealedShares(included=request, seeds=(owned,), mask_keys=()),
    )


def _included(request: bytes, everybody: tuple[int, ...]) -> sums.IncludedList:
    return sums.IncludedList(members=request, dealers=everybody, included=everybody)
