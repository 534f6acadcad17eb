"""Secure sums of Python's and a phone's devices under Python's server: the exact sum, or none, whoever is lost."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from federation.protocol.signing import Kind
from federation.secure_sums import server
from federation.secure_sums.messages import ServerMessage, ToDevice, ToServer
from federation.secure_sums.server import ServerStage
from tests.federation.secure_sums.small_sums import (
    BOUND,
    LAYOUT,
    NAMES,
    STAGES,
    Network,
    device,
    identity,
    request,
)
from tests.federation.secure_sums.test_vouching import KEY, NOW, member, voucher_of
from tests.phone.test_javascript import HERE, why_not

SUMS = 30


class Phones:
    """Node, with the devices of every sum of the test."""

    def __init__(self) -> None:
        command = ["node", "--import", str(HERE / "register.mjs"), str(Path(__file__).parent / "sum_clients.mjs")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, **said: Any) -> dict[str, Any]:
        """Tell a device something; return what comes of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(said), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def stop(self) -> None:
        """End node."""
        self.process.communicate()


@dataclass
class MixedNetwork(Network):
    """Some of its devices are phones. A phone hears messages twice, and some before their time."""

    phones: Phones | None = None
    phone_names: frozenset[str] = frozenset()
    number: int = 0
    vouching: dict[str, dict[str, Any]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    drawn: random.Random = field(default_factory=random.Random)

    def answers(self, stage: ServerStage, message: ToDevice) -> Iterator[tuple[str, ToServer]]:
        """Answer by node, where the device is a phone."""
        name = message.device
        if name not in self.phone_names:
            yield from super().answers(stage, message)
            return
        if name in self.lost and STAGES.index(stage) >= STAGES.index(self.lost[name]):
            return
        if message.kind in (ServerMessage.SHARES, ServerMessage.INCLUDED) and self.drawn.random() < 0.3:
            early = self._said(name, {"kind": "confirmed", "body": '{"early":1}', "shared": ""})
            assert "before its time" in early["reason"], early
        heard: dict[str, Any] = {"kind": message.kind.value, "body": message.body.decode()}
        heard["shared"] = message.shared.decode()
        if message.kind is ServerMessage.SHARES:
            heard["vector"] = self.vectors[name].vector.tolist()
        answer = self._said(name, heard)
        if self.vouching and answer["reason"]:
            self.reasons[name] = answer["reason"]
            return
        assert not answer["reason"], answer
        if message.kind is not ServerMessage.REQUEST and self.drawn.random() < 0.3:
            assert self._said(name, heard) == answer
        sent = answer["message"]
        yield name, ToServer(Kind(sent["kind"]), base64.b64decode(sent["payload"]), base64.b64decode(sent["vector"]))

    def _said(self, name: str, event: dict[str, Any]) -> dict[str, Any]:
        assert self.phones is not None
        private = base64.b64encode(identity(name).private_bytes_raw()).decode()
        about = {"bound": BOUND, "layout": LAYOUT.hex()}
        seed = f"{self.number}/{name}"
        said = {"sum": self.number, "device": name, "identity": private, "seed": seed, "event": event, "about": about}
        return self.phones.say(**said, vouching=self.vouching.get(name))


def deliver_mixed(drawn: random.Random, messages: list[tuple[str, ToServer]]) -> Iterator[tuple[str, ToServer]]:
    """Deliver in any order, some twice, some not at all."""
    for name, message in drawn.sample(messages, len(messages)):
        if drawn.random() < 0.94:
            yield name, message
            if drawn.random() < 0.2:
                yield name, message


@pytest.mark.ci
def test_phones_and_boards_have_the_exact_sum_or_none_whoever_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := why_not():
        pytest.skip(reason)
    phones, ends = Phones(), {ServerStage.DONE: 0, ServerStage.FAILED: 0}
    try:
        for number in range(SUMS):
            drawn = random.Random(number)
            names = NAMES[: drawn.randint(3, len(NAMES))]
            monkeypatch.setattr(server, "MAX_INLINE_BYTES", drawn.choice([0, 1 << 16]))
            gone = drawn.sample(names, drawn.randint(0, max(1, len(names) // 4)))
            network = MixedNetwork(
                names,
                request(bits=drawn.choice([32, 64]), attempt=drawn.randbytes(32)),
                {name: drawn.choice(STAGES[1:]) for name in gone},
                lambda _stage, messages, drawn=drawn: deliver_mixed(drawn, messages),
                phones=phones,
                phone_names=frozenset(drawn.sample(names, drawn.randint(1, len(names)))),
                number=number,
                drawn=drawn,
            )
            state = network.run()
            ends[state.stage] += 1
            if state.stage is ServerStage.DONE:
                assert server.result(state).tolist() == network.sum_of(state).tolist()
            else:
                assert "needed" in state.reason, state.reason
    finally:
        phones.stop()
    assert min(ends.values()) > 2, ends


@pytest.mark.ci
@pytest.mark.parametrize("invented", [False, True])
def test_phones_judge_vouchers_as_boards_do(invented: bool) -> None:
    if reason := why_not():
        pytest.skip(reason)
    boards, phones, last = NAMES[:2], NAMES[2:4], NAMES[4]
    node = Phones()
    shown = {name: voucher_of(name) for name in (*boards, *phones)}
    said = {"key": base64.b64encode(KEY).decode(), "revoked": [], "nowMs": 1000 * NOW}
    network = MixedNetwork(
        (*boards, *phones, last),
        devices={
            **{name: member(name) for name in boards},
            last: device(last, voucher=b"" if invented else voucher_of(last)),
        },
        phones=node,
        phone_names=frozenset(phones),
        number=1000 + invented,
        vouching={name: {**said, "voucher": shown[name].decode()} for name in phones},
    )
    try:
        state = network.run()
    finally:
        node.stop()
    if not invented:
        assert state.stage is ServerStage.DONE
        assert server.result(state).tolist() == network.sum_of(state).tolist()
        return
    assert state.stage is ServerStage.FAILED
    told = {**network.reasons, **{name: network.states[name].reason for name in boards}}
    assert told == dict.fromkeys((*boards, *phones), f"nobody vouches for {last}")
