"""A device's data folder: what it must not lose, its windows, its key and its credentials."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from edge_agent.config.sensors import WindowsSection
from edge_agent.storage.credentials import (
    KEY_FILE,
    BrokerLogin,
    Credentials,
    device_key,
    pin_server,
    pinned_server,
    read_credentials,
    write_credentials,
)
from edge_agent.storage.labels import label_span
from edge_agent.storage.retention import MachineClock
from edge_agent.storage.state_store import (
    ADOPTION_REPORT,
    NEWEST_ANNOUNCEMENT,
    RELEASE_OFFER,
    RELEASE_ORDER,
    RELEASE_REPORT,
    AdoptionRecord,
    StateStore,
)
from edge_agent.storage.window_listing import Selection, by_class
from edge_agent.storage.window_store import WindowStore
from federation.plan import Plan
from federation.protocol.messages import UpdateManifest
from federation.protocol.signing import fingerprint
from tests.edge_agent.window_factories import BEGAN_S, LABELS, SETTINGS, of_classes
from tests.samples.messages import DEVICE_KEY, INSTANCE, NOW, SERVER_KEY, plan, public_bytes, samples

SPAN = (BEGAN_S + 2.0, BEGAN_S + 6.0, "run")
CREDENTIALS = Credentials(
    api_key="gw_sample_0123456789",
    broker=BrokerLogin(username="walk.ada", password="sample-password"),
    server_key=base64.b64encode(public_bytes(SERVER_KEY.public_key())).decode(),
)


class StandingClock(MachineClock):
    """The same on every machine, whenever it was started."""

    def running_s(self) -> float:
        """Return an hour."""
        return 3600.0

    def boot(self) -> str:
        """Name one start."""
        return "00000000-0000-0000-0000-000000000000"


def write(out: Path) -> None:
    """Write device/, and device.json: what it says."""
    from tests.samples.make import dump

    folder = out / "device"
    _write_state(folder)
    store = WindowStore(folder, StandingClock())
    store.add(of_classes((0, 1, -1)), LABELS, SETTINGS, WindowsSection(), origin="csv")
    label_span(store, *SPAN)
    store.put(reads="csv")
    store.close()
    key = DEVICE_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / KEY_FILE).write_bytes(key)
    write_credentials(folder, CREDENTIALS)
    pin_server(folder, fingerprint(public_bytes(SERVER_KEY.public_key())))
    dump(out / "device.json", told(folder))


def told(folder: Path) -> dict[str, Any]:
    """Read everything that the program reads of its folder."""
    state, store = StateStore(folder), WindowStore(folder)
    state.check()
    store.check()
    messages = (state.release_order(), state.release_offer(), state.release_report(), state.adoption_report())
    windows = store.read("ada", SETTINGS, LABELS)
    credentials = read_credentials(folder)
    found = {
        "epoch": state.epoch,
        "newest": json.loads(state.get(NEWEST_ANNOUNCEMENT)),
        "identity": state.get("identity"),
        "client_state": state.get("client_state"),
        "plan": Plan.model_validate_json(state.get("plan")).model_dump(mode="json"),
        "messages": [message and message.model_dump(mode="json") for message in messages],
        "rounds": [row._asdict() for row in state.rounds()],
        "adoptions": [row._asdict() for row in state.adoptions()],
        "outbox": {name: str(path.relative_to(folder)) for name, path in state.outbox().items()},
        "manifests": [state.manifest(name).model_dump(mode="json") for name in state.outbox()],
        "counts": store.counts(),
        "reads": store.get("reads"),
        "by_class": [list(row) for row in by_class(store, Selection())],
        "x": [hashlib.sha256(x.tobytes()).hexdigest() for x in windows.x],
        "y": windows.y.tolist(),
        "start_s": windows.start_s.tolist(),
        "session": windows.session.tolist(),
        "next_session": store.next_session(),
        "key": public_bytes(device_key(folder).public_key()).hex(),
        "credentials": credentials and credentials.model_dump(mode="json"),
        "server": pinned_server(folder),
    }
    state.close()
    store.close()
    return found


def _write_state(folder: Path) -> None:
    messages = {name: sample.message for name, sample in samples().items()}
    store = StateStore(folder)
    store.reset(identity=f"{INSTANCE}/fedali", plan=plan().model_dump_json(), final="")
    store.begin_epoch(2, "restored", **{NEWEST_ANNOUNCEMENT: json.dumps([2, 40])})
    names = {
        RELEASE_ORDER: "release_order",
        RELEASE_OFFER: "offer",
        RELEASE_REPORT: "release_report",
        ADOPTION_REPORT: "adoption_report",
    }
    store.put(**{name: messages[message].model_dump_json() for name, message in names.items()})
    manifest = messages["update_manifest"]
    assert isinstance(manifest, UpdateManifest)
    result = {"metrics": {"works_after": 1.0}, "seconds": 2.5}
    store.keep_update(
        manifest, folder / "outbox" / manifest.update_id, result, client_state=f"clients/{manifest.update_id}"
    )
    store.leave_out(4, "cd" * 32, "the battery is low")
    store.note_adoption(AdoptionRecord(3, "global", True, "better", {"round": 3}, NOW))
    store.close()
