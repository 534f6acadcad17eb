"""Attack a federation with secure sums by one of its devices, and show that the others go on.

    python deploy/attack_sums.py [numbers shares keys]

For each attack a server, a broker and seven agents run as processes of their own; one of them is the agent with one
function replaced (`LIES`). What the server then did is read over REST and printed. It ends with 1 if an attack held the
others up, if the server doesn't name the attacker, or if anybody else is suspended.

A device that adds impossible numbers isn't known at once: its group sits out until its sums have changed. So all
devices record more, until the liar alone is suspended and a version has everybody else. A checkout is needed: the
processes are those of `tests/live`.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.live.fleet import Fleet
    from tests.live.test_continuous import World

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

DEVICES, LEAST = 7, 3
MAX_SEARCHES = 6
QUIET_S = 3.0
WITHIN_S = float(os.environ.get("GAITWAY_PATIENCE_S", "900"))


def _add_to_numbers() -> None:
    """Add 2⁵⁰ to the first number of the vector, which no window's sums reach."""
    from federation.secure_sums import client

    honest = client.masked_vector

    def masked_vector(listed: Any, state: Any, vector: Any) -> Any:
        total = honest(listed, state, vector)
        total[0] += type(total[0])(1 << 50)
        return total

    client.masked_vector = masked_vector


def _deal_unopenable_shares() -> None:
    """Seal zeros for every neighbour."""
    from federation.secure_sums import masks

    honest = masks.seal
    masks.seal = lambda key, text, about: bytes(len(honest(key, text, about)))


def _sign_others_keys() -> None:
    """Sign keys with another key than the enrolled one."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from federation.secure_sums import client

    honest, other = client.begin, Ed25519PrivateKey.generate()

    def begin(device: Any, request: bytes) -> Any:
        from dataclasses import replace

        return honest(replace(device, sign=other.sign), request)

    client.begin = begin


LIES = {"numbers": _add_to_numbers, "shares": _deal_unopenable_shares, "keys": _sign_others_keys}


def main(words: list[str]) -> int:
    """Run attacks, or be the device that lies."""
    if words[:1] == ["--lying"]:
        LIES[words[1]]()
        sys.argv = ["edge_agent", *words[2:]]
        runpy.run_module("edge_agent", run_name="__main__")
        return 0
    failed = [name for name in words or LIES if not _attack(name)]
    print(f"held up by: {', '.join(failed)}" if failed else "no attack held the others up")
    return 1 if failed else 0


def _attack(name: str) -> bool:
    """Run one attack; return whether the others went on."""
    from tests.live.fleet import embedded, fleet

    doc = " ".join((LIES[name].__doc__ or "").split())
    print(f"== {name}: one of {DEVICES} devices does this: {doc}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gaitway-attack-") as scratch:
        folder = Path(scratch)
        with fleet(folder, broker=embedded) as federation:
            world, plan = _world()
            federation.get("/v1/federations", {"name": "live", "plan": plan})
            liar, configs = (
                world.names[0],
                [world.write_config(folder, name, federation, "mqtt") for name in world.names],
            )
            for config in configs:
                device = config.stem
                agent = (__file__, "--lying", name) if device == liar else ("-m", "edge_agent")
                federation.add_device(config, enrols=True, agent=agent)
            _wait_for_version(federation, 1)
            found = _judged(federation, liar)
            if name == "numbers":
                found = found and _is_found_out(federation, liar, configs)
    print(
        f"{'the others went on' if found else 'THE OTHERS WERE HELD UP'}, {time.monotonic() - began:.0f} s", flush=True
    )
    return found


def _is_found_out(federation: Fleet, liar: str, configs: Sequence[Path]) -> bool:
    """Let all record more, until the liar is suspended and a version has all others; print how it went."""
    for minutes in range(3, 3 + MAX_SEARCHES):
        is_known, before = _suspended(federation) == [liar], _versions(federation)
        _record_more(federation, configs, minutes)
        _wait_for_version(federation, before)
        print(f"after {minutes} minutes of recordings:", flush=True)
        _judged(federation, liar)
        if is_known:
            federation.wait_for(lambda: _clients(federation) == DEVICES - 1, "no version of all others comes")
            return _judged(federation, liar)
    return False


def _wait_for_version(federation: Fleet, before: int) -> None:
    """Wait until there are more versions than before, and no group of a failed sum is left to be tried."""
    federation.wait_for(lambda: _versions(federation) > before, "no version of the others comes")
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S:
        newest = max(federation.listing("/v1/federations/live/rounds"), key=lambda row: int(row["number"]))
        if newest["phase"] not in ("published", "failed"):
            quiet_since = time.monotonic()
        time.sleep(0.2)


def _record_more(federation: Fleet, configs: Sequence[Path], minutes: int) -> None:
    for config in configs:
        config.write_text(re.sub(r"minutes = [\d.]+", f"minutes = {minutes}.0", config.read_text()))
        federation.devices[config.stem].ask_to_stop()
    for config in configs:
        federation.devices[config.stem].stop()
        federation.devices[config.stem].start()


def _versions(federation: Fleet) -> int:
    return len(federation.listing("/v1/federations/live/models"))


def _clients(federation: Fleet) -> int:
    from tests.live.test_continuous import newest

    return int(newest(federation).get("clients", 0))


def _suspended(federation: Fleet) -> list[str]:
    return [device["name"] for device in federation.listing("/v1/federations/live/devices") if device["suspended_at"]]


def _world() -> tuple[World, dict[str, Any]]:
    """Describe seven people's analytic federation, whose first round has them all."""
    from federation.plan import SecureSettings
    from tests.live.test_continuous import COSINES, world_of
    from tests.live.walks import experiment_for, plan_of

    names = [f"s{number:02}_phone100-waist" for number in range(DEVICES)]
    options = {"subjects": DEVICES, "phones": ["phone100"], "places": ["waist"], "minutes": 2.0}
    settings = experiment_for("analytic", minutes=2.0).model_copy(update={"dataset_options": options})
    world = world_of(names, settings, None, COSINES)
    plan = plan_of(world.settings)
    unjudged = {"norm_factor": None, "max_weight_ratio": None}
    changes = {
        "rounds": plan.rounds.model_copy(
            update={**unjudged, "clients_per_round": DEVICES, "deadline_s": 300.0, "max_refused_updates": 2}
        ),
        "secure": SecureSettings(mode="masked", min_devices=LEAST),
    }
    return world, plan.model_copy(update=changes).model_dump(mode="json")


def _judged(federation: Fleet, liar: str) -> bool:
    """Print what the server has done; return whether it names the liar, and has a version of others than all."""
    is_blamed = False
    for row in federation.listing("/v1/federations/live/rounds"):
        print(f"round {row['number']}: {row['phase']} {row['reason']}")
    for event in federation.listing("/v1/federations/live/journal"):
        if event["kind"] in ("round.retried", "update.excluded", "update.quarantined", "device.suspended"):
            print(f"{event['kind']} {event['device'] or ''}: {event['detail']}")
            is_blamed |= liar in (event["device"] or "") or liar in event["detail"]
    clients, status = _clients(federation), federation.get("/v1/federations/live")["status"]
    suspended = _suspended(federation)
    print(
        f"the version is of {clients} devices; suspended: {', '.join(suspended) or 'nobody'}; it is {status}",
        flush=True,
    )
    return is_blamed and LEAST <= clients < DEVICES and status == "running" and set(suspended) <= {liar}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
