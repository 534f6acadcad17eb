"""A server over real sockets without a broker, and devices that have enrolled and speak HTTP to it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator_api.core.settings import Settings
from aggregator_api.devices import enrolment_tokens
from aggregator_api.federations import service
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.app import create_app
from aggregator_api.runtime import Runtime
from federation.protocol import topics
from federation.protocol.messages import Acknowledgement, read, write
from federation.protocol.over_http import EventReader, ServerEvent, path_of, stream_path
from federation.protocol.signing import Kind, to_sign, unwrap, wrap
from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.generated_devices import FEDERATION, Parcel, Wires, status, tiny_plan
from tests.ports import free_port

GRACE_S = 120
"""How long a server that ends waits for its streams, unless they end by themselves."""
PATIENCE_S = 60.0
"""For an answer; a machine that is very busy takes longer."""


class Server:
    """The application in a thread of its own; devices need an operator's approval."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        port = free_port()
        given = {"port": port, "admission": "enrolled", "aggregation_process": False, "chunk_bytes": 1024, **settings}
        self.app = create_app(Settings(data_dir=folder, **given), Wires)
        self.url = f"http://127.0.0.1:{port}"
        config = uvicorn.Config(self.app, port=port, log_config=None, lifespan="on", timeout_graceful_shutdown=GRACE_S)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_for(lambda: self._server.started)
        self.runtime: Runtime = self.app.state.runtime
        self.runtime.federations.create(NewFederation(name=FEDERATION, plan=tiny_plan()))

    def stop(self) -> None:
        """End it as a signal does."""
        self.runtime.closing.set()
        self._server.should_exit = True
        self._thread.join()

    def operator_key(self) -> str:
        """Return the first key of the server."""
        return (self.runtime.settings.data_dir / "operator.key").read_text().strip()

    def enrolled(self, name: str) -> Device:
        """Enrol a device as it would do it, approved at once."""
        return Device(self, name, self.token(name))

    def token(self, name: str) -> str:
        """Make an enrolment token that approves its device at once."""
        with self.runtime.database.write() as session:
            _, token = enrolment_tokens.make(
                session,
                service.get_federation(session, FEDERATION),
                enrolment_tokens.NewToken(device=name, auto_approve=True, lifetime_s=60),
                self.runtime.identity.public_key,
            )
        return token


class Device:
    """One device: its key pair, and the API key that it was given."""

    def __init__(self, server: Server, name: str, token: str) -> None:
        self.server, self.name, self.pair = server, name, Ed25519PrivateKey.generate()
        said = {
            "token": token,
            "public_key": base64.b64encode(self.pair.public_key().public_bytes_raw()).decode(),
            **self.signed(Kind.ENROL, token),
        }
        answer = httpx.post(f"{server.url}/v1/enrol", json=said, timeout=PATIENCE_S)
        assert answer.status_code == 201, answer.text
        self.key: str = answer.json()["credentials"]["api_key"]

    def signed(self, kind: Kind, body: str) -> dict[str, str]:
        """Return the names and the signature of a request that proves itself."""
        signature = self.pair.sign(to_sign(kind, FEDERATION, self.name, body.encode()))
        return {"federation": FEDERATION, "device": self.name, "signature": base64.b64encode(signature).decode()}

    def ask_token(self, issued_at_ms: int, **changes: Any) -> httpx.Response:
        """Ask for a key for some minutes."""
        said = {"issued_at_ms": issued_at_ms, **self.signed(Kind.TOKEN, str(issued_at_ms)), **changes}
        return httpx.post(f"{self.server.url}/v1/enrol/token", json=said, timeout=PATIENCE_S)

    def post(self, topic: str, body: bytes = b"", *, key: str | None = None) -> httpx.Response:
        """Post what the device would publish on a topic."""
        method = "PUT" if "/chunk/" in topic else "POST"
        headers = {"Authorization": f"Bearer {key or self.key}"}
        url = self.server.url + path_of(topic)
        return httpx.request(method, url, content=body, headers=headers, timeout=PATIENCE_S)

    def say(self, state: str) -> None:
        """Say what it does."""
        assert self.post(topics.status(FEDERATION, self.name), status(state)).status_code == 204

    def step(self, sent: Parcel, *step: str | int, body: bytes = b"") -> Acknowledgement:
        """Send a part of an update, and return what the server answers."""
        answer = self.post(sent.topic(*step), body)
        assert answer.status_code == 200, answer.text
        return read(Acknowledgement, unwrap(answer.content).body)

    def begin(self, sent: Parcel) -> Acknowledgement:
        """Send the manifest, signed."""
        manifest = wrap(Kind.UPDATE, FEDERATION, self.name, write(sent.manifest), self.pair.sign)
        return self.step(sent, "begin", body=manifest)

    @contextmanager
    def stream(
        self, last_id: str = "", *, key: str | None = None, quiet_s: float = PATIENCE_S
    ) -> Iterator[Iterator[ServerEvent]]:
        """Open the device's stream."""
        headers = {"Authorization": f"Bearer {key or self.key}", **({"Last-Event-ID": last_id} if last_id else {})}
        path = stream_path(FEDERATION, self.name)
        with httpx.stream("GET", self.server.url + path, headers=headers, timeout=quiet_s) as answer:
            assert answer.status_code == 200, answer.read()
            yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[ServerEvent]:
    reader, rest = EventReader(), b""
    for piece in answer.iter_raw():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if event := reader.take(line + b"\n"):
                yield event
