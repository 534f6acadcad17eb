"""Attack a server and its devices as a stranger or a careless operator could, and show that the federation goes on.

    python deploy/attack_server.py [texts numbers bodies passwords silence stop]

A server, a broker and three agents run as processes of their own. After each attack a device leaves and returns, and a
version has to come each time. It ends with 1 if an attack did what it shouldn't, or held the others up. A checkout is
needed: the processes are those of `tests/live`.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

if TYPE_CHECKING:
    from tests.live.fleet import Fleet

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

HOSTILE_TEXTS = ("lone \ud800 surrogate", "a\0b", "a\r\nb: c", "x" * 3000)
GUESSES = 30
BODY_S = 30.0
"""What the server gives a client for each MiB of a body."""
STOP_S = 5.0


def texts(federation: Fleet, plan: dict[str, Any]) -> str:
    """Name federations and activities by what is no text: half a character, control characters, 3,000 letters."""
    for text in HOSTILE_TEXTS:
        named = _status(federation, "/v1/federations", {"name": text, "plan": plan})
        labelled = _status(
            federation, "/v1/federations", {"name": "other", "plan": {**plan, "labels": [text, "walking"]}}
        )
        if not 400 <= min(named, labelled) <= max(named, labelled) < 500:
            return f"{text[:20]!r} is answered {named} as a name, {labelled} as an activity"
    return ""


def numbers(federation: Fleet, plan: dict[str, Any]) -> str:
    """Give true and false where numbers belong."""
    for section, key in (("rounds", "minimum_clients"), ("promotion", "margin"), ("training", "lr")):
        changed = {**plan, section: {**(plan.get(section) or {}), key: False}}
        if (status := _status(federation, "/v1/federations", {"name": "other", "plan": changed})) != 422:
            return f"{section}.{key} = false is answered {status}"
    return ""


def bodies(federation: Fleet, _plan: dict[str, Any]) -> str:
    """Send a body that is too large, and one of which a byte comes each second."""
    if (status := _status(federation, "/v1/federations", {"name": "x" * (2 << 20)})) != 413:
        return f"2 MiB are answered {status}"
    key = federation.bearer["Authorization"]
    with socket.create_connection(("127.0.0.1", federation.http)) as client:
        client.sendall(
            f"POST /v1/keys HTTP/1.1\r\nHost: a\r\nAuthorization: {key}\r\nContent-Length: 999\r\n\r\n".encode()
        )
        client.settimeout(1.0)
        began = time.monotonic()
        while _is_open(client):
            if time.monotonic() - began > 3 * BODY_S:
                return f"a body that trickles in holds a connection for over {3 * BODY_S:.0f} s"
    return ""


def passwords(federation: Fleet, _plan: dict[str, Any]) -> str:
    """Guess the operator's key again and again; the right one has to open the pages still."""
    guesses = [_login(federation, f"gw_{'a' * 12}_{number:043}") for number in range(GUESSES)]
    if 303 in guesses or max(guesses) >= 500:
        return f"wrong keys are answered {sorted(set(guesses))}"
    right = _login(federation, federation.key_file.read_text().strip())
    return "" if right == 303 else f"the right key is answered {right}"


def silence(federation: Fleet, _plan: dict[str, Any]) -> str:
    """Stop a device in the middle of whatever it does, and let another one leave and return meanwhile."""
    *_, quiet = federation.devices.values()
    quiet.process.send_signal(signal.SIGSTOP)
    try:
        return _goes_on(federation)
    finally:
        quiet.process.send_signal(signal.SIGCONT)


def stop(federation: Fleet, _plan: dict[str, Any]) -> str:
    """End the server by SIGTERM while a device is about to send."""
    _toggle(federation, "withdraw")
    began = time.monotonic()
    federation.server.ask_to_stop()
    federation.server.process.wait(60)
    took, log = time.monotonic() - began, federation.server.log.read_text()
    federation.server.start()
    federation.wait_for(federation.is_ready, "the server isn't ready")
    _toggle(federation, "take-part")
    if "Traceback" in log:
        return "it prints a traceback"
    return f"it takes {took:.1f} s" if took > STOP_S else ""


ATTACKS: dict[str, Callable[[Fleet, dict[str, Any]], str]] = {
    attack.__name__: attack for attack in (texts, numbers, bodies, passwords, silence, stop)
}


def main(names: list[str]) -> int:
    """Run attacks against one federation, and print what came of each."""
    from tests.live.fleet import embedded, fleet
    from tests.live.test_continuous import COSINES, SYNTHETIC, world_of
    from tests.live.walks import data_options, experiment_for, plan_of

    options = {**data_options(2.0), "phones": ["phone100", "phone200", "phone50"]}
    settings = experiment_for("analytic", minutes=2.0).model_copy(update={"dataset_options": options})
    world, failed = world_of(SYNTHETIC, settings, None, COSINES), list[str]()
    plan = plan_of(world.settings).model_dump(mode="json")
    with tempfile.TemporaryDirectory(prefix="gaitway-attack-") as scratch:
        folder = Path(scratch)
        with fleet(folder, broker=embedded) as federation:
            federation.get("/v1/federations", {"name": "live", "plan": plan})
            for name in world.names:
                federation.add_device(world.write_config(folder, name, federation, "mqtt"), enrols=True)
            _wait_for_clients(federation, len(world.names))
            for name in names or ATTACKS:
                began, doc = time.monotonic(), " ".join((ATTACKS[name].__doc__ or "").split())
                print(f"== {name}: {doc}", flush=True)
                problem = ATTACKS[name](federation, plan) or _goes_on(federation)
                failed += [name] if problem else []
                print(f"{problem or 'the federation goes on'}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"not held: {', '.join(failed)}" if failed else "every attack was held")
    return 1 if failed else 0


def _goes_on(federation: Fleet) -> str:
    """Let a device leave and return; each time a version has to come."""
    for command, clients in (("withdraw", len(federation.devices) - 1), ("take-part", len(federation.devices))):
        _toggle(federation, command)
        _wait_for_clients(federation, clients)
    return ""


def _toggle(federation: Fleet, command: str) -> None:
    from tests.live.test_continuous import ask

    ask(federation.folder / f"{next(iter(federation.devices))}.toml", command)


def _wait_for_clients(federation: Fleet, clients: int) -> None:
    from tests.live.test_continuous import newest

    federation.wait_for(
        lambda: newest(federation).get("clients", 0) == clients, f"no version of {clients} devices comes"
    )


def _status(federation: Fleet, path: str, body: dict[str, Any]) -> int:
    """Post a body, and return how it is answered; an answer of the server's own fault is one as well."""
    headers = {"Content-Type": "application/json", **federation.bearer}
    return _answered(urllib.request.Request(federation.url + path, json.dumps(body).encode(), headers))


def _login(federation: Fleet, key: str) -> int:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    return _answered(urllib.request.Request(f"{federation.url}/login", urlencode({"key": key}).encode(), headers))


class _KeepRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer itself is looked at."""


def _answered(request: urllib.request.Request) -> int:
    try:
        with urllib.request.build_opener(_KeepRedirects).open(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _is_open(client: socket.socket) -> bool:
    """Send a byte, and wait for the time-out; false if the other end has closed or answered."""
    try:
        client.sendall(b" ")
        client.recv(4096)
        return False
    except TimeoutError:
        return True
    except OSError:
        return False


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
