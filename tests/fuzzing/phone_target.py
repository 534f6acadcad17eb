"""The Sensor Logger endpoint as a target: requests to the real listener, and what is taken down to kept windows."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import socket
import sys
import threading
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from edge_agent.config.sensors import PhoneSection, SensorsSection
from edge_agent.sensors.collector import Collector
from edge_agent.sensors.sensor_logger.inbox import PATH, Listener, PhoneInbox, Vocabulary
from edge_agent.sensors.sensor_logger.stream import MAX_WAITING, PhoneStream
from tests.edge_agent.factories import make_config, make_plan
from tests.edge_agent.sensors.sensor_logger.phone import BEGAN_S, LABELS, annotation, entries, messages, walk
from tests.fuzzing.mutants import bytes_of, hostile, json_of, value_of

TOKEN = "a-token-of-this-device"
STATUSES = {100, 200, 400, 408, 411, 413, 414, 431, 499, 501, 503, 505}
ANSWER_BYTES = 2048
OVER_TCP = 50
"""One case in so many goes over a real connection, with its thread; the others over a pair of sockets."""
AT_ONCE = 50_000
"""Bytes that a pair of sockets surely holds, as nobody reads while they are written."""
OTHERS: tuple[dict[str, Any], ...] = (
    {"name": "battery", "values": {"batteryLevel": 0.5, "batteryState": "charging", "lowPowerMode": False}},
    {"name": "network", "values": {"type": "wifi", "isConnectionExpensive": False}},
    {"name": "battery temperature", "values": {"temperature": 30.0}},
    {"name": "location", "values": {"latitude": 1.0, "longitude": 2.0}},
)


class WatchedListener(Listener):
    """Keeps the errors that the listener passes over in silence."""

    def __init__(self, settings: PhoneSection, inbox: PhoneInbox) -> None:
        self.errors: list[BaseException] = []
        super().__init__(settings, inbox)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note what is more than a client that has gone."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.errors.append(error)


class Endpoint:
    """A case is the bytes of a connection; what the listener takes goes on as it does in the device."""

    def __init__(self, folder: Path) -> None:
        phone = PhoneSection(token=TOKEN, port=0, max_body_kb=64)
        sensors = SensorsSection(source="sensor_logger_http")
        config = make_config(folder).model_copy(update={"phone": phone, "sensors": sensors})
        self.outcomes = Counter[str]()
        self._inbox = PhoneInbox(phone)
        self._listener = WatchedListener(phone, self._inbox)
        stop = threading.Event()
        plan = make_plan()
        self._collector = Collector(config, plan, lambda event: None, origin="phone", live=True, stop=stop)
        self._meaning = Vocabulary(phone, plan.labels).activity_of
        self._stream = PhoneStream(self._collector, 0.0, self._meaning)
        self._valid = _recording()
        self._next = 0

    def begin(self, rng: random.Random) -> None:
        """Let a recording begin somewhere."""
        self.outcomes += self._stream.counts
        self._stream = PhoneStream(self._collector, rng.choice((0.0, 2.0)), self._meaning)
        self._next = rng.randrange(len(self._valid))
        self._later_ns = rng.randrange(10**6) * 10**9
        self._session = f"s{rng.randrange(3)}"

    def draw(self, rng: random.Random) -> bytes:
        """Take the next message of a recording, changed a little, or change the last one or its request a lot."""
        if rng.random() < 0.01:
            self._next = rng.randrange(len(self._valid))
        message = self._moved(self._valid[self._next])
        if rng.random() < 0.7:  # a window needs several seconds without a gap
            self._next = (self._next + 1) % len(self._valid)
            return _request("POST", PATH + TOKEN, "HTTP/1.1", json.dumps(_gently_changed(rng, message)).encode(), {})
        request = _changed_request(rng, json_of(rng, message if rng.random() < 0.9 else hostile(rng)))
        request = bytes_of(rng, request) if rng.random() < 0.2 else request
        return request[:AT_ONCE] if rng.random() < 0.9 else request[: AT_ONCE // 2] * 2

    def feed(self, case: bytes) -> None:
        """Send it, look at the answers, and let the collecting thread's work be done."""
        over_tcp = zlib.crc32(case) % OVER_TCP == 0
        answers = self._over_tcp(case) if over_tcp else self._over_a_pair(case)
        self._judge(answers)
        while not self._inbox.batches.empty():
            batch = self._inbox.batches.get_nowait()
            assert batch is not None
            self._stream.accept(batch)
        assert self._stream.waiting <= MAX_WAITING
        if self._listener.errors:
            raise self._listener.errors.pop()

    def close(self) -> dict[str, int]:
        """Stop listening."""
        self._listener.close()
        self._collector.close()
        return {**self.outcomes, "windows kept": self._collector.writer.kept}

    def _moved(self, message: dict[str, Any]) -> dict[str, Any]:
        payload = [{**entry, "time": entry["time"] + self._later_ns} for entry in message["payload"]]
        return {**message, "sessionId": self._session, "payload": payload}

    def _over_a_pair(self, case: bytes) -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * AT_ONCE)
            theirs.sendall(case)
            theirs.shutdown(socket.SHUT_WR)
            with ours:
                self._listener.finish_request(ours, ("192.0.2.1", 9))
            return _all(theirs)

    def _over_tcp(self, case: bytes) -> bytes:
        self.outcomes["over TCP"] += 1
        with socket.create_connection(("127.0.0.1", self._listener.port), timeout=120) as phone:
            with contextlib.suppress(OSError):  # closed before all was sent
                phone.sendall(case)
                phone.shutdown(socket.SHUT_WR)
            return _all(phone)

    def _judge(self, answers: bytes) -> None:
        assert len(answers) <= ANSWER_BYTES * (1 + answers.count(b"HTTP/1.1 ")), len(answers)
        if not answers:
            self.outcomes["closed without an answer"] += 1
        for answer in answers.split(b"HTTP/1.1 ")[1:]:
            status = int(answer[:3])
            assert status in STATUSES, status
            self.outcomes[str(status)] += 1


def _recording() -> list[dict[str, Any]]:
    """Make the messages of a minute's walk, with annotations and what else a phone sends."""
    times_s, sensors = walk(60.0, rate_hz=50.0)
    found = messages(entries(times_s, sensors), per_message=24)
    for k, message in enumerate(found):
        at_s = BEGAN_S + 60.0 * k / len(found)
        if k % 20 == 0:
            message["payload"].append(annotation(at_s, (*LABELS, "stop", "calibrate")[k // 20 % 8]))
        if k % 7 == 0:
            message["payload"].append({**copy.deepcopy(OTHERS[k // 7 % 4]), "time": round(at_s * 1e9)})
    return found


def _gently_changed(rng: random.Random, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that is mostly taken: one entry changed, moved, repeated or left out, or one more."""
    payload = list(message["payload"])
    at = rng.randrange(len(payload))
    match rng.randrange(8):
        case 0:
            payload[at] = {**payload[at], "values": value_of(rng, payload[at]["values"])}
        case 1:
            payload[at] = {**payload[at], "time": payload[at]["time"] + rng.choice((1, -1)) * rng.getrandbits(40)}
        case 2:
            del payload[at]
        case 3:
            payload.insert(rng.randrange(len(payload)), payload[at])
        case 4:
            payload[at:at] = [{"name": str(hostile(rng))[:100], "time": payload[at]["time"], "values": hostile(rng)}]
        case 5:
            name = rng.choice(("annotation", "battery", "network", "battery temperature"))
            known = {key: hostile(rng) for key in ("text", "batteryLevel", "batteryState", "type", "temperature")}
            payload.append({"name": name, "time": payload[at]["time"], "values": known})
        case 6:
            rng.shuffle(payload)
        case 7:
            scale = rng.choice((1.0 + 1e-9 * rng.random(), -1.0, 100.0))
            values = {axis: scale * value for axis, value in payload[at]["values"].items() if isinstance(value, float)}
            payload[at] = {**payload[at], "values": {**payload[at]["values"], **values}}
    return {**message, "payload": payload}


def _changed_request(rng: random.Random, body: bytes) -> bytes:
    said: dict[str, Any] = {}
    method, path, version = "POST", PATH + TOKEN, "HTTP/1.1"
    match rng.randrange(12):  # or nothing
        case 0:
            method = rng.choice(("GET", "PUT", "HEAD", "post", "", "POST POST", _line(rng)))
        case 1:
            path = rng.choice((PATH, PATH + "x" * 22, "/", path + "?a=b", path + "/", "//" + path, _line(rng)))
        case 2:
            version = rng.choice(("HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.1.1", "HTTP/99999999999.1", ""))
        case 3:
            said["Content-Length"] = rng.choice((0, 1, len(body) - 1, len(body) + 1, 10**11, 10**30, "-1", "+5", "٣"))
        case 4:
            said = {f"X-{k}": "y" * rng.choice((1, 70_000)) for k in range(rng.choice((1, 5, 101)))}
        case 5:
            name = rng.choice(("Connection", "Expect", "Transfer-Encoding", _line(rng)))
            said[name] = rng.choice(("keep-alive", "close", "100-continue", "chunked", _line(rng)))
    return _request(method, path, version, body, said)


def _request(method: str, path: str, version: str, body: bytes, said: dict[str, Any]) -> bytes:
    said = {"Host": "device", "Content-Type": "application/json", "Content-Length": len(body), **said}
    head = f"{method} {path} {version}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return head.encode(errors="replace") + b"\r\n" + body


def _line(rng: random.Random) -> str:
    return str(hostile(rng))[:200]


def _all(phone: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):  # it was closed before all was read: it has said no
        while part := phone.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)
