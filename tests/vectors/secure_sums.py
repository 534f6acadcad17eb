"""Writes `secure_sums.json`: what one device says and hears in secure sums, byte for byte, for ends in other languages.

Run by hand: python -m tests.vectors.secure_sums. Keys and random numbers are drawn from names (`small_sums.seeded`: the
n-th call for so many bytes is SHAKE-256 of "{seed}/{name}/{n}"), so that the same events have the same answers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from federation import wire
from federation.method import Method
from federation.methods import method_to_json
from federation.methods.fedali import FedAli
from federation.methods.fedavg import FedAvg
from federation.methods.fedpr import FedPr
from federation.methods.fedproto import FedProto
from federation.methods.scaffold import Scaffold
from federation.plan import SecureSettings
from federation.records import Tree, Update
from federation.records.tree import flatten
from federation.secure_sums import server
from federation.secure_sums.membership import degree_for, neighbours_of
from federation.secure_sums.messages import ServerMessage, ToDevice, ToServer, VectorReady
from federation.secure_sums.server import ServerStage
from federation.secure_sums.summation import Segment, SumLayout, encoded, gain_segments, scale
from tests.federation.secure_sums.small_sums import LAYOUT, Network, identity, request

PATH = Path(__file__).parent / "secure_sums.json"
DEGREES = ((3, 200, 200), (4, 200, 200), (10, 0, 50), (41, 333, 0), (41, 0, 50), (100, 200, 200), (1000, 200, 200))
"""Members, and per mille that work for the server and are lost."""
CLASSES = 3
GAINS = {"personalized": (1, -1200, 300, 1, 5000, 0, 0, 1, -5000)}
"""A device's report, without the other candidate."""
LARGE = 1 << 32
"""The bound of the numbers of a continuous federation."""


@dataclass
class Recorded(Network):
    """Notes what one device hears, and what it answers."""

    whose: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)

    def answers(self, stage: ServerStage, message: ToDevice) -> Any:
        """Answer as the network does, and note it."""
        found: list[tuple[str, ToServer]] = list(super().answers(stage, message))
        if message.device == self.whose:
            heard = {"kind": message.kind.value, "body": message.body.decode(), "shared": message.shared.decode()}
            if message.kind is ServerMessage.SHARES:
                heard["vector"] = self.vectors[self.whose].vector.tolist()
            self.events.append({**heard, "answer": [_said(sent) for _, sent in found]})
        return iter(found)


def _said(sent: ToServer) -> dict[str, str]:
    return {"kind": sent.kind.value, "payload": _base64(sent.payload), "vector": _base64(sent.vector)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _case(
    name: str,
    members: int,
    whose: int,
    gone: Mapping[int, ServerStage] | None = None,
    *,
    bound: int = 1000,
    apart: bool = False,
    **asked: Any,
) -> dict[str, Any]:
    names = tuple(f"device{number:03d}" for number in range(members))
    lost = {names[number]: stage for number, stage in (gone or {}).items()}
    network = Recorded(names, request(**asked), lost, seed=name, whose=names[whose])
    each_length = network.asked.length // network.asked.groups
    drawn = np.random.default_rng(7).integers(-bound, bound + 1, (members, each_length))
    drawn[:, 0] = -bound
    network.vectors = {each: VectorReady(row, bound, LAYOUT) for each, row in zip(names, drawn, strict=True)}
    with patch.object(server, "MAX_INLINE_BYTES", 0 if apart else server.MAX_INLINE_BYTES):
        state = network.run()
    assert state.stage is ServerStage.DONE, state.reason
    assert server.result(state).tolist() == network.sum_of(state).tolist()
    return {
        "name": name,
        "device": names[whose],
        "identity": _base64(identity(names[whose]).private_bytes_raw()),
        "entropy": f"{name}/{names[whose]}",
        "bound": bound,
        "groups": network.asked.groups,
        "layout": LAYOUT.hex(),
        "events": network.events,
    }


def _change(name: str, examples: int, method: Method = FedAvg(), **limits: Any) -> dict[str, Any]:
    """What a client adds, of numbers that are cut off, halves between two steps, and odd shapes."""
    settings = SecureSettings(mode="masked", **limits)
    draw = torch.Generator().manual_seed(examples)
    start = {"body.weight": torch.randn(3, 2, generator=draw), "head.bias": torch.randn(5, generator=draw)}
    start["head.bias"][0] = 0.0
    moved = {key: value + 2 * torch.randn(value.shape, generator=draw) for key, value in start.items()}
    moved["head.bias"][0] = 1.5 / settings.steps / examples
    broadcast: Tree = {"params": start}
    upload: Tree = {"params": moved, **_more(method, draw, broadcast)}
    upload = {group: upload[group] for group in upload if group in method.upload_groups}
    update = Update("", examples, 1, upload)
    summand = method.summand(update, broadcast, settings)
    segments = []
    for group, kind in method.sum_groups.items():
        steps, bound = scale(kind, settings)
        flat = flatten({group: summand[group]})
        segments += [Segment(key, tuple(value.shape), steps, bound) for key, value in flat.items()]
    layout = SumLayout((*segments, *gain_segments(method, CLASSES, settings)))
    return {
        "name": name,
        "method": method_to_json(method),
        "examples": examples,
        "classes": CLASSES,
        "limits": settings.model_dump(mode="json"),
        "broadcast": _base64(wire.encode(broadcast)),
        "upload": _base64(wire.encode(update.tensors)),
        "layout": layout.digest.hex(),
        "gains": GAINS,
        "numbers": encoded(method, layout, update, broadcast, settings, GAINS).tolist(),
    }


def _more(method: Method, draw: torch.Generator, broadcast: Tree) -> Tree:
    """What a client of the method sends besides parameters: large numbers too, a class without examples."""
    if isinstance(method, Scaffold):
        return {"variate": {"body.weight": 40 * torch.randn(3, 2, generator=draw), "head.bias": torch.zeros(5)}}
    if isinstance(method, FedAli):
        centres = {"alp.": torch.randn(4, 3, generator=draw)}
        broadcast["prototypes"] = centres
        near = centres["alp."][[1, 1, 3, 0]] + 0.1 * torch.randn(4, 3, generator=draw)
        return {"prototypes": {"alp.": near}}
    if isinstance(method, (FedProto, FedPr)):
        rows = 40 * torch.randn(3, 4, generator=draw)
        return {"prototypes": rows, "counts": torch.tensor([700.0, 0.0, 2.0])}
    return {}


def vectors() -> dict[str, Any]:
    """Make the vectors; the same each time."""
    return {
        "degrees": [
            [members, colluding, lost, *degree_for(members, colluding, lost)] for members, colluding, lost in DEGREES
        ],
        "neighbours": [
            [index, members, degree, seed.hex(), neighbours_of(index, members, degree, seed)]
            for index, members, degree, seed in ((5, 40, 8, bytes(32)), (0, 300, 4, b"\xff" * 32), (2, 5, 4, bytes(32)))
        ],
        "changes": [
            _change("thirty examples", 30),
            _change("more examples than the limit, and small bounds", 700, max_weight=64, max_change=0.5, steps=7),
            _change("room for noise", 30, max_weight=1, clip_norm=300.0, noise_multiplier=1.5),
            _change("weighed alike", 31, FedAvg(weighting="uniform")),
            _change("variates", 32, Scaffold()),
            _change("prototypes by their examples", 33, FedProto(average_over="round"), max_weight=64),
            _change("prototypes that count alike", 34, FedProto(average_over="round", weighting="uniform")),
            _change("prototypes and parameters", 35, FedPr()),
            _change("a step of Lloyd's", 36, FedAli(clustering="one_step")),
        ],
        "sums": [
            _case("three of 32 bits", 3, 1),
            _case("groups", 11, 4, {6: ServerStage.VECTORS}, groups=3, length=15),
            _case("three of 64 bits", 3, 0, bits=64, bound=LARGE, length=6),
            _case("two of twelve are lost", 12, 4, {2: ServerStage.VECTORS, 7: ServerStage.LISTS}, length=3),
            _case("one is lost before it deals shares", 12, 4, {2: ServerStage.SHARES}, bits=64, length=3),
            _case("a sparse graph", 30, 11, {3: ServerStage.VECTORS}, colluding=0, lost=50, length=2),
            _case("lists apart", 5, 2, apart=True),
        ],
    }


def text(made: dict[str, Any]) -> str:
    """Write vectors, a case or a row a line."""
    lists = {name: ",\n".join(map(json.dumps, cases)) for name, cases in made.items()}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: [\n{rows}\n]" for name, rows in lists.items()) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(text(vectors()), encoding="utf-8")
