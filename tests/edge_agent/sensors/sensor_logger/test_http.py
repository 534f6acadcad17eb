"""The app's HTTP push against the real listener: what it answers, what it bounds, and what comes of a recording."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import queue
import random
import select
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_agent.config.sensors import PhoneSection, SensorsSection
from edge_agent.config.settings import Config
from edge_agent.errors import ConfigError
from edge_agent.http_server import CONNECTIONS
from edge_agent.machine.events import DataReady, Event, PhoneConditions, SensorFailed
from edge_agent.sensors import open_source
from edge_agent.sensors.sensor_logger.inbox import MAX_QUEUED, PATH, Listener, Outcome, PhoneInbox
from edge_agent.storage.window_store import WindowStore
from har_pipeline import dataset_labels, split_client
from tests.edge_agent.factories import make_config, make_plan
from tests.edge_agent.sensors.sensor_logger.phone import (
    BEGAN_S,
    SETTINGS,
    annotation,
    bodies,
    entries,
    expected_windows,
    messages,
    walk,
)
from tests.ports import free_port

TOKEN = "a-token-of-this-device"


@pytest.fixture
def listener() -> Iterator[Listener]:
    with_port = PhoneSection(token=TOKEN, port=0, max_body_kb=64)
    found = Listener(with_port, PhoneInbox(with_port))
    yield found
    found.close()


def post(
    port: int, body: bytes = b"", path: str = PATH + TOKEN, method: str = "POST", **headers: str
) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as phone:
        phone.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = phone.getresponse()
        return answer.status, answer.read().decode()


def test_the_test_push_is_welcome_and_a_browser_sees_that_the_url_is_right(listener: Listener) -> None:
    assert post(listener.port) == (200, "connected; start a recording")
    assert post(listener.port, b"{}")[0] == 200
    assert "Push URL" in post(listener.port, method="GET")[1]


def test_what_the_user_can_put_right_is_said_with_499(listener: Listener) -> None:
    times_s, sensors = walk(1.0)
    in_g = next(bodies(messages(entries(times_s, sensors | {"gravity": sensors["gravity"] / 9.80665}))))
    wrong_way = [*entries(times_s, sensors, -1.0)[:150], annotation(BEGAN_S, "Calibrate")]
    for body, path, words in (
        (b"", PATH + "another-token-entirely", "not enrolled"),
        (b"", PATH, "not enrolled"),
        (b"", "/data", "unknown path"),
        (in_g, PATH + TOKEN, "wrong units"),
        (next(bodies(messages(wrong_way, per_message=1000))), PATH + TOKEN, "points the wrong way"),
    ):
        status, text = post(listener.port, body, path)
        assert (status, words in text) == (499, True), (path, text)
    assert listener.inbox.batches.empty()


def test_what_is_no_message_of_the_app_is_refused(listener: Listener) -> None:
    for body in (
        b"hello",
        b"[1]",
        b'{"payload": 3}',
        b"[" * 60_000,
        b'{"payload":[{"name":"' + b"x" * 200 + b'","time":1}]}',
    ):
        assert post(listener.port, body)[0] == 400
    assert post(listener.port, b"x" * 65_537)[0] == 413
    with closing(http.client.HTTPConnection("127.0.0.1", listener.port, timeout=60)) as phone:
        phone.putrequest("POST", PATH + TOKEN)
        phone.putheader("Transfer-Encoding", "chunked")
        phone.endheaders()
        assert phone.getresponse().status == 411
    assert post(listener.port, method="PUT")[0] == 501


def test_one_phone_at_a_time(listener: Listener) -> None:
    times_s, sensors = walk(0.5)
    rows = entries(times_s, sensors)
    first, second = (next(bodies(messages(rows, device=name))) for name in ("one", "two"))
    assert post(listener.port, first)[0] == 200
    assert post(listener.port, second) == (499, "another phone is recording to this device; stop it there first")
    chosen = PhoneInbox(PhoneSection(token=TOKEN, device_id="two"))
    assert chosen.take(first).verdict is Outcome.REFUSED
    assert chosen.take(second).verdict is Outcome.ACCEPTED


def test_a_device_that_cannot_keep_up_says_so_and_holds_no_more(listener: Listener) -> None:
    times_s, sensors = walk(0.5)
    found = [post(listener.port, body)[0] for body in bodies(messages(entries(times_s, sensors), per_message=5))]
    assert found == [200] * MAX_QUEUED + [503] * (len(found) - MAX_QUEUED)
    assert listener.inbox.batches.qsize() == MAX_QUEUED


def test_connections_are_bounded_and_a_silent_one_holds_up_no_other(listener: Listener) -> None:
    silent = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(CONNECTIONS - 1)]
    time.sleep(0.3)
    assert post(listener.port)[0] == 200
    silent += [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(4)]
    closed, _, _ = select.select(silent, [], [], 60)  # which of them the kernel hands over last is its own affair
    assert closed
    assert closed[0].recv(1) == b""
    for each in silent:
        each.close()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            assert post(listener.port)[0] == 200
            return
        except (ConnectionError, http.client.HTTPException):
            time.sleep(0.05)
    raise AssertionError("its slots were not given back")


def test_over_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    made = subprocess.run(
        [*command.split(), "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl made no certificate")
    phone = PhoneSection(token=TOKEN, port=0, tls_cert=cert, tls_key=key)
    listener = Listener(phone, PhoneInbox(phone))
    # a client that never shakes hands holds up nobody
    with socket.create_connection(("127.0.0.1", listener.port)):
        context = ssl.create_default_context(cafile=str(cert))
        with closing(http.client.HTTPSConnection("localhost", listener.port, timeout=60, context=context)) as client:
            client.request("POST", PATH + TOKEN, b"")
            assert client.getresponse().status == 200
    listener.close()


def test_a_hashed_token_is_as_good_and_none_is_an_error() -> None:
    phone = PhoneSection(token="sha256:" + hashlib.sha256(TOKEN.encode()).hexdigest(), port=0)
    listener = Listener(phone, PhoneInbox(phone))
    assert post(listener.port)[0] == 200
    assert post(listener.port, path=PATH + str(phone.token))[0] == 499
    listener.close()
    with pytest.raises(ConfigError, match="token_urlsafe"):
        Listener(PhoneSection(port=0), PhoneInbox(PhoneSection()))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
NAMES = st.sampled_from(
    ["accelerometer", "gravity", "gyroscope", "totalacceleration", "annotation", "battery", "Network"]
)
VALUES = st.dictionaries(st.sampled_from(["x", "y", "z", "text", "batteryLevel", "type"]), SCALARS, max_size=4)
ENTRY = st.fixed_dictionaries({"name": NAMES, "time": SCALARS, "values": VALUES | SCALARS})
MESSAGE = st.fixed_dictionaries({"messageId": SCALARS, "sessionId": SCALARS, "payload": st.lists(ENTRY, max_size=4)})
TOKENS = (
    b"1e999",
    b"NaN",
    b"null",
    b"-1",
    b"9" * 40,
    b'"',
    b"{",
    b"[",
    b"}",
    b"]",
    b",",
    b'"\\ud800"',
    b"\xff",
    b"0.1",
    b"",
)


def mutated(body: bytes, chance: random.Random) -> bytes:
    """Break a message in one to four places."""
    for _ in range(chance.randint(1, 4)):
        at, end = sorted((chance.randint(0, len(body)), chance.randint(0, len(body))))
        end = chance.choice((at, at + 1, end))
        body = body[:at] + chance.choice((*TOKENS, body[at:end] * chance.randint(1, 3))) + body[end:]
        body = body[:20_000]
    return body


def check_hostile(body: bytes) -> bool:
    """Whatever it is: a verdict in few words, and only finite numbers behind the door; says whether it came in."""
    inbox = PhoneInbox(PhoneSection())
    answer = inbox.take(body)
    assert answer.verdict in Outcome
    assert len(answer.message) < 1000
    if inbox.batches.empty():
        return False
    batch = inbox.batches.get_nowait()
    for samples in batch.motion.values():
        assert np.isfinite(samples.times_s).all()
        assert np.isfinite(samples.values).all()
    return True


def check_around(message: dict[str, Any], seed: int, count: int) -> None:
    times_s, sensors = walk(0.06)
    right = next(bodies(messages(entries(times_s, sensors))))
    odd, chance = json.dumps(message).encode(), random.Random(seed)
    check_hostile(odd)
    came_in = sum(check_hostile(mutated(chance.choice((right, odd)), chance)) for _ in range(count))
    assert came_in < count


@given(MESSAGE, st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_no_bytes_break_the_inbox(message: dict[str, Any], seed: int) -> None:
    check_around(message, seed, 100)


THOUSANDS = max(1, int(os.environ.get("GAITWAY_FUZZ", "1000000")) // 1000)


@pytest.mark.slow
@given(MESSAGE, st.integers(0, 2**32))
@settings(max_examples=THOUSANDS, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_no_bytes_break_the_inbox_in_a_million_cases(message: dict[str, Any], seed: int) -> None:
    check_around(message, seed, 1000)


def phone_config(folder: Path, **phone: Any) -> Config:
    config = make_config(folder)
    own = {"sensors": SensorsSection(source="sensor_logger_http"), "phone": PhoneSection(token=TOKEN, **phone)}
    return config.model_copy(update=own)


def wait_for(posted: queue.SimpleQueue[Event], kind: type[Event], seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while True:
        event = posted.get(timeout=max(0.01, until - time.monotonic()))
        assert not isinstance(event, SensorFailed), event
        if isinstance(event, kind):
            return event


def test_a_recording_becomes_labelled_windows_to_train_on(tmp_path: Path) -> None:
    posted: queue.SimpleQueue[Event] = queue.SimpleQueue()
    port, labels = free_port(), dataset_labels("synthetic")
    source = open_source(phone_config(tmp_path, port=port, annotations={"stairs": labels[1]}), posted.put)
    source.start(make_plan())
    assert wait_for(posted, DataReady) == DataReady(0, measurable=False)
    times_s, sensors = walk(40.0)
    battery = {"name": "battery", "time": round(BEGAN_S * 1e9), "values": {"batteryLevel": 0.5, "batteryState": "full"}}
    rows = [annotation(BEGAN_S + 10, "stairs"), battery, *entries(times_s, sensors)]
    for body in bodies(messages(rows, per_message=1500)):
        while post(port, body)[0] == 503:
            time.sleep(0.02)
    assert wait_for(posted, PhoneConditions) == PhoneConditions(BEGAN_S, charging=True, battery=0.5)
    source.stop(5.0)
    ready = wait_for(posted, DataReady)
    with closing(WindowStore(tmp_path)) as store:
        health, kept = json.loads(store.get("health")), store.read("c", SETTINGS, labels)
        counts = store.counts()
    expected = expected_windows(times_s, sensors, np.where(times_s < BEGAN_S + 10, "", labels[1]), labels)
    labelled = [window for window in expected if window.y == 1]
    np.testing.assert_allclose(kept.x, np.stack([window.x for window in labelled]), atol=2e-5)
    assert counts == {"": len(expected) - len(labelled), labels[1]: len(labelled)}
    assert ready.examples == len(split_client(kept, "temporal", test_share=0.2, settings=SETTINGS).train) > 10
    assert health["rate_hz"] == {"acc": pytest.approx(100, abs=1), "gyro": pytest.approx(100, abs=1)}
    assert health["acceleration"] == pytest.approx(9.8, abs=0.5)
    assert health["samples"] == {"acc": 4000, "gyro": 4000}
