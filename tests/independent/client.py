"""A device that is written from docs/protocol.md, docs/rest.md and docs/asyncapi.json alone.

It imports nothing of Gaitway's, so that a change that only our own ends survive is noticed. It speaks HTTP, learns
nothing, and adds fixed numbers to the model instead.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import math
import secrets
import struct
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MARK = b"gaitway-signed/1"
PROTOCOL = json.loads((Path(__file__).parents[2] / "docs" / "asyncapi.json").read_text())
BLOCK = 256
"""Numbers that share a scale in int8; smaller tensors travel as they are."""
Tensors = dict[str, np.ndarray]


def valid(kind: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that its published schema allows."""
    jsonschema.Draft7Validator({**PROTOCOL, "$ref": f"#/components/schemas/{kind}"}).validate(message)
    return message


def signed_text(kind: str, federation: str, device: str, body: bytes) -> bytes:
    return b"\n".join((MARK, kind.encode(), federation.encode(), device.encode(), body))


def read_tensors(data: bytes) -> Tensors:
    """Read safetensors of float32 and int64."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, stop = (8 + length + offset for offset in about["data_offsets"])
        found[name] = np.frombuffer(data[start:stop], {"F32": "<f4", "I64": "<i8"}[about["dtype"]]).reshape(
            about["shape"]
        )
    return found


def write_tensors(tensors: Tensors) -> bytes:
    """Write safetensors of float32, int32 and int8."""
    header, body = {}, b""
    for name, value in sorted(tensors.items()):
        data = value.tobytes()
        dtype = {"float32": "F32", "int32": "I32", "int8": "I8"}[value.dtype.name]
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def as_int8(update: Tensors, start: Tensors) -> Tensors:
    """Quantize the changes of large tensors; small ones travel whole."""
    packed: Tensors = {}
    for name, value in update.items():
        if value.size < BLOCK:
            packed[f"values/{name}"] = value
            continue
        change = (value - start[name]).reshape(-1)
        blocks = [change[i : i + BLOCK] for i in range(0, change.size, BLOCK)]
        scales = np.array([max(float(np.abs(block).max()) / 127, 1e-12) for block in blocks], np.float32)
        levels = np.concatenate([np.rint(block / scale) for block, scale in zip(blocks, scales, strict=True)])
        packed[f"values/{name}"] = levels.astype(np.int8).reshape(value.shape)
        packed[f"scales/{name}"] = scales
    return packed


class Update:
    """An update as it lies in a device's outbox: its manifest and its bytes."""

    def __init__(self, manifest: dict[str, Any], data: bytes, tensors: Tensors) -> None:
        self.manifest, self.data, self.tensors = manifest, data, tensors

    def chunks(self) -> list[bytes]:
        size = self.manifest["chunk_bytes"]
        return [self.data[i : i + size] for i in range(0, len(self.data), size)]


class Client:
    """One device; `answers` are the acknowledgements that it got."""

    def __init__(self, url: str, federation: str, device: str, *, precision: str = "lossless") -> None:
        self._place = urlsplit(url).netloc
        self.federation, self.device, self.precision = federation, device, precision
        self._pair = Ed25519PrivateKey.generate()
        self._headers = {"Content-Type": "application/json"}
        self.announcement: dict[str, Any] = {}
        self.invitation: dict[str, Any] = {}

    # ---- enrolment

    def enrol(self, token: str) -> None:
        """Show a token, and keep the key that it brings and the server's."""
        body = {
            "token": token,
            "federation": self.federation,
            "device": self.device,
            "public_key": base64.b64encode(self._pair.public_key().public_bytes_raw()).decode(),
            "signature": self._signature("enrol", token.encode()),
        }
        status, answer = self._ask("POST", "/v1/enrol", json.dumps(body).encode())
        assert status == 201, answer
        credentials = json.loads(answer)["credentials"]
        self._headers["Authorization"] = f"Bearer {credentials['api_key']}"
        self._server_key = Ed25519PublicKey.from_public_bytes(base64.b64decode(credentials["server_key"]))

    # ---- what the server says

    def listen(self) -> None:
        """Read the beginning of the stream, which is what is retained: it ends with the announcement."""
        connection = self._connection()
        connection.request("GET", self._path("messages"), headers=self._headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        event, lines = "", list[bytes]()
        while event != "announcement" or not lines or answer.fp is None:
            event, lines = self._read_event(answer)
            if event in ("announcement", "invitation", "acknowledgement", "offer", "notice"):
                self._hear(event, b"\n".join(lines))
        connection.close()

    def _read_event(self, answer: http.client.HTTPResponse) -> tuple[str, list[bytes]]:
        event, lines = "", list[bytes]()
        while (line := answer.readline().rstrip(b"\r\n")) or not event:
            if line.startswith(b"event: "):
                event = line.removeprefix(b"event: ").decode()
            elif line.startswith(b"data: "):
                lines.append(line.removeprefix(b"data: "))
        return event, lines

    def _hear(self, kind: str, payload: bytes) -> dict[str, Any]:
        """Verify a message before it is parsed."""
        head, _, body = payload.partition(b"\n")
        mark, _, signature = head.partition(b" ")
        assert mark == MARK
        to = "" if kind == "announcement" else self.device
        self._server_key.verify(base64.b64decode(signature), signed_text(kind, self.federation, to, body))
        message = valid(kind.capitalize(), json.loads(body))
        if kind in ("announcement", "invitation"):
            setattr(self, kind, message)
        return message

    @property
    def is_invited(self) -> bool:
        """Whether the open round wants this device."""
        now, mine = self.announcement, self.invitation
        same = all(now.get(name) == mine.get(name) for name in ("instance", "epoch", "round"))
        return now.get("state") == "collecting" and same

    # ---- what the device says

    def say(self, state: str, examples: int) -> None:
        """Publish a status."""
        body = json.dumps(valid("DeviceStatus", {"state": state, "examples": examples})).encode()
        status, answer = self._ask("POST", self._path("status"), body)
        assert status == 204, answer

    def train(self, examples: int, step: float) -> Update:
        """Make an update to the round that this device is invited to: each parameter moved by `step`."""
        model, training = self.invitation["model"], self.announcement["plan"]["training"]
        status, data = self._ask("GET", urlsplit(model["url"]).path)
        assert (status, len(data), hashlib.sha256(data).hexdigest()) == (200, model["size"], model["sha256"])
        start = {name: value for name, value in read_tensors(data).items() if name.startswith("params/")}
        tensors = {name: (value + np.float32(step)).astype(np.float32) for name, value in start.items()}
        sent = write_tensors(as_int8(tensors, start) if self.precision == "int8" else tensors)
        digest, number = hashlib.sha256(sent).hexdigest(), self.invitation["round"]
        manifest = {
            "update_id": f"r{number}-{self.device}-{digest[:16]}",
            "federation": self.federation,
            "instance": self.invitation["instance"],
            "client": self.device,
            "round": number,
            "method": self.announcement["plan"]["method"]["name"],
            "base_version": model["sha256"],
            "examples": examples,
            "steps": training["epochs"] * math.ceil(examples / training["batch_size"]),
            "precision": self.precision,
            "size": len(sent),
            "sha256": digest,
            "chunk_bytes": self.announcement["chunk_bytes"],
            "nonce": secrets.token_hex(8),
            "created": time.time(),
        }
        return Update(manifest, sent, tensors)

    def begin(self, update: Update) -> dict[str, Any]:
        """Announce an update; returns the server's answer."""
        body = json.dumps(valid("UpdateManifest", update.manifest)).encode()
        signature = self._signature("update", body).encode()
        return self._step(update, "POST", "begin", MARK + b" " + signature + b"\n" + body)

    def send_chunk(self, update: Update, number: int) -> None:
        """Send one chunk."""
        path = self._path("update", update.manifest["update_id"], "chunk", str(number))
        status, answer = self._ask("PUT", path, update.chunks()[number])
        assert status in (200, 204), answer

    def upload(self, update: Update) -> dict[str, Any]:
        """Send what the server does not have yet; returns its last answer."""
        answer = self.begin(update)
        while answer["status"] == "send":
            for number in range(answer["next_chunk"], len(update.chunks())):
                self.send_chunk(update, number)
            answer = self._step(update, "POST", "end", b"")
        return answer

    def _step(self, update: Update, method: str, step: str, body: bytes) -> dict[str, Any]:
        status, answer = self._ask(method, self._path("update", update.manifest["update_id"], step), body)
        assert status == 200, answer
        message = self._hear("acknowledgement", answer)
        assert (message["update_id"], message["nonce"]) == (update.manifest["update_id"], update.manifest["nonce"])
        return message

    # ---- how

    def _path(self, *rest: str) -> str:
        return "/".join((f"/v1/federations/{self.federation}/devices/{self.device}", *rest))

    def _signature(self, kind: str, body: bytes) -> str:
        return base64.b64encode(self._pair.sign(signed_text(kind, self.federation, self.device, body))).decode()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._place, timeout=60)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a request, and again where the server is busy."""
        while True:
            connection = self._connection()
            connection.request(method, path, body, self._headers)
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            if answer.status not in (429, 503, 507):
                return answer.status, data
            time.sleep(float(answer.headers["Retry-After"]))
