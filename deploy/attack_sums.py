"""Attack a federation with secure sums by one of its devices, and show that the others go on.

    python deploy/attack_sums.py [numbers shares keys]

For each attack a server, a broker and seven agents run as processes of their own; one of them is the agent with one
function replaced (`LIES`). What the server then did is read over REST and printed. It ends with 1 if an attack held the
others up, or if the server doesn't name the attacker. A checkout is needed: the processes are those of `tests/live`.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.live.fleet import Fleet
    from tests.live.test_continuous import World

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

DEVICES, LEAST = 7, 3
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
    from federation.secure_sums import client

    honest = client.masks.seal
    client.masks.seal = lambda key, text, about: bytes(len(honest(key, text, about)))


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
            liar = world.names[0]
            for device in world.names:
                config = world.write_config(folder, device, federation, "mqtt")
                agent = (__file__, "--lying", name) if device == liar else ("-m", "edge_agent")
                federation.add_device(config, enrols=True, agent=agent)
            federation.wait_for(
                lambda: len(federation.listing("/v1/federations/live/models")) > 1, "no version of the others comes"
            )
            found = _judged(federation, liar)
    print(
        f"{'the others went on' if found else 'THE OTHERS WERE HELD UP'}, {time.monotonic() - began:.0f} s", flush=True
    )
    return found


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
        "rounds": plan.rounds.model_copy(update={**unjudged, "clients_per_round": DEVICES, "deadline_s": 300.0}),
        "secure": SecureSettings(mode="masked", min_devices=LEAST),
    }
    return world, plan.model_copy(update=changes).model_dump(mode="json")


def _judged(federation: Fleet, liar: str) -> bool:
    """Print what the server has done; return whether it names the liar, and has a version of others than all."""
    blamed = False
    for row in federation.listing("/v1/federations/live/rounds"):
        print(f"round {row['number']}: {row['phase']} {row['reason']}")
    for event in federation.listing("/v1/federations/live/journal"):
        if event["kind"] in ("round.retried", "update.excluded", "update.quarantined", "device.suspended"):
            print(f"{event['kind']} {event['device'] or ''}: {event['detail']}")
            blamed |= liar in (event["device"] or "") or liar in event["detail"]
    from tests.live.test_continuous import newest

    clients = int(newest(federation).get("clients", 0))
    status = federation.get("/v1/federations/live")["status"]
    print(f"the version is of {clients} devices; the federation is {status}")
    return blamed and LEAST <= clients < DEVICES and status == "running"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
