"""What a secure sum costs a device and the server, in processor time and bytes, by the number of devices.

A device's figures are those of one that reads a list of as many real keys for itself, 5 % of them lost with their
vectors. The server's, up to --whole devices, are of a sum that all of them take part in, in one process; of more, of
its steps for one device, times their number. Example: `python benchmarks/bench_secure_sums.py --devices 10 100`.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.protocol.signing import Kind, to_sign, unwrap, wrap
from federation.secure_sums import client, masks, server, shamir
from federation.secure_sums.in_memory import InMemorySum
from federation.secure_sums.membership import Membership, degree_for, membership
from federation.secure_sums.messages import (
    ConfirmedList,
    DeliveredShares,
    EncryptedShares,
    FromDevice,
    FromServer,
    IncludedList,
    MemberSignature,
    RevealedShares,
    SealedShare,
    ServerMessage,
    SignedHead,
    StageClosed,
    SumDevice,
    SumRequest,
    VectorReady,
    digest,
    read,
    written,
)
from federation.secure_sums.server import ServerStage, ServerState

LAYOUT, LOST_SHARE = bytes(32), 0.05
LENGTHS = {"prototypes, 6 × 192": 6 * 192 + 6, "HAR CNN": 123_303, "(G, B), 760 × 6": 760 * 761 // 2 + 760 * 6 + 1}
BOUNDS = {"prototypes, 6 × 192": 64 * 4096 * 1024, "HAR CNN": 4 * 4096 * 1024, "(G, B), 760 × 6": 1 << 32}


@dataclass
class Spent:
    """Milliseconds of processor time, and bytes of one device."""

    client_ms: float = 0.0
    server_ms: float = 0.0
    up: int = 0
    down: int = 0
    by_stage: dict[str, float] = field(default_factory=dict)


def timed(call: Callable[[], Any], repeats: int = 1) -> tuple[Any, float]:
    """Return what a call returns, and its milliseconds."""
    begun = time.process_time()
    for _ in range(repeats):
        result = call()
    return result, (time.process_time() - begun) * 1000 / repeats


def devices_named(count: int) -> dict[str, SumDevice]:
    """Make devices with keys."""
    keys = [(f"device{i:05d}", Ed25519PrivateKey.generate()) for i in range(count)]
    return {name: SumDevice(name, key.public_key().public_bytes_raw(), key.sign) for name, key in keys}


def asked(length: int, bits: masks.Bits) -> SumRequest:
    """Make a request of the plan's default shares."""
    given = {"attempt": secrets.token_bytes(32), "length": length, "bits": bits, "layout": LAYOUT}
    return SumRequest(federation="f", instance="0" * 32, round=1, min_members=3, colluding=200, lost=200, **given)


def whole_server_ms(count: int, length: int, bits: masks.Bits, bound: int) -> float:
    """Run all devices, and return the server's milliseconds."""
    devices = devices_named(count)
    numbers = np.random.default_rng(0).integers(-1000, 1000, length)
    lost = dict.fromkeys(list(devices)[: round(LOST_SHARE * count)], ServerStage.VECTORS)
    ready = dict.fromkeys(devices, VectorReady(numbers, bound, LAYOUT))
    driver = InMemorySum(devices, asked(length, bits), ready, lost)
    ended = driver.run()
    if not np.array_equal(server.result(ended), numbers * len(server.included_devices(ended))):
        raise SystemExit("the sum is wrong")
    return 1000 * driver.server_seconds


class Sample:
    """One device in a long list, and what it costs itself and the server."""

    def __init__(self, count: int, length: int, bits: masks.Bits, bound: int) -> None:
        self.count, self.spent = count, Spent()
        self.devices = devices_named(count)
        self.names = list(self.devices)
        self.ready = VectorReady(np.random.default_rng(0).integers(-1000, 1000, length), bound, LAYOUT)
        self.request = written(asked(length, bits))
        self.state = server.begin(
            read(SumRequest, self.request), {name: own.identity for name, own in self.devices.items()}
        ).state
        self.listed: Membership

    def client(self, stage: str, call: Callable[[], client.ClientStep], body: bytes) -> client.ClientStep:
        """Take one step of the device; the list it has yet to read when it deals shares."""
        if stage == "shares":
            membership.cache_clear()
        step, ms = timed(call)
        self.spent.by_stage[stage] = ms
        self.spent.client_ms += ms
        self.spent.down += len(body)
        if step.message is not None:
            self.spent.up += len(step.message.payload) + len(step.message.vector)
        elif step.reason:
            raise SystemExit(step.reason)
        return step

    def take(self, state: ServerState, event: FromDevice) -> ServerState:
        """Let the server take one device's message, as often as there are devices."""
        taken, ms = timed(lambda: server.step(state, event))
        if taken.refusal:
            raise SystemExit(taken.refusal)
        self.spent.server_ms += ms * self.count
        return taken.state

    def run(self) -> Spent:
        """Take all stages."""
        begun = {name: client.begin(own, self.request) for name, own in self.devices.items()}
        own, state = self.names[0], begun[self.names[0]].state
        self.client("keys", lambda: client.begin(self.devices[own], self.request), self.request)
        _, ms = timed(lambda: self._all_keys(begun))
        members = self.closed()
        self.spent.server_ms += ms
        self.listed = membership(self.request, members)
        dealt = dict(self.dealt(begun, members))
        state = self.client("shares", lambda: self.step(own, state, ServerMessage.MEMBERS, members), members).state
        delivered = self.delivered(state, dealt)
        after_delivery = self.client(
            "delivery", lambda: self.step(own, state, ServerMessage.SHARES, delivered), delivered
        ).state
        masked = self.client("vector", lambda: client.step(self.devices[own], after_delivery, self.ready), b"")
        return self.rest(own, masked)

    def rest(self, own: str, masked: client.ClientStep) -> Spent:
        """Take the vector, the list and the opening."""
        message = masked.message
        assert message is not None
        everybody = tuple(range(self.count))
        included = tuple(i for i in everybody if not 0 < i <= round(LOST_SHARE * self.count))
        state = self.state.model_copy(
            update={"stage": ServerStage.VECTORS, "dealers": everybody, "total": bytes(len(message.vector))}
        )
        state = self.take(state, FromDevice(own, message.kind, message.payload, message.vector))
        body = written(IncludedList(members=self.listed.digest, dealers=everybody, included=included))
        listed = self.client("list", lambda: self.step(own, masked.state, ServerMessage.INCLUDED, body), body)
        assert listed.message is not None
        state = state.model_copy(update={"stage": ServerStage.LISTS, "included": body})
        state = self.take(state, FromDevice(own, Kind.SUM_LIST, listed.message.payload))
        signatures = tuple(
            MemberSignature(member=i, signature=self.devices[self.names[i]].sign(self.text(i, body)))
            for i in included[: self.listed.degree.quorum]
        )
        heads = tuple(
            SignedHead(member=i, head=self.head(i, message.payload)) for i in self.listed.neighbours(0) if i in included
        )
        confirmed = written(ConfirmedList(included=digest(body), signatures=signatures, heads=heads))
        opened = self.client(
            "opening", lambda: self.step(own, listed.state, ServerMessage.CONFIRMED, confirmed), confirmed
        )
        assert opened.message is not None
        state = state.model_copy(update={"stage": ServerStage.OPENING})
        self.take(state, FromDevice(own, Kind.SUM_OPENED, opened.message.payload))
        self.unmask(masked.state, opened.message.payload, len(included))
        return self.spent

    def unmask(self, state: client.ClientState, opened: bytes, included: int) -> None:
        """Time what the server does for one device in the sum, and for one that is lost."""
        degree, private = self.listed.degree, masks.private_key(bytes(range(32)))
        total = np.zeros(self.ready.vector.shape, masks.dtype_of(self.listed.request.bits))
        points = np.arange(1, degree.neighbours + 1, dtype=np.uint64)
        shares = shamir.split(bytes(32), points, degree.threshold, secrets.token_bytes)[: degree.threshold]
        batch = np.tile(points[: degree.threshold], (64, 1))
        _, combined = timed(lambda: shamir.combine(batch, [shares] * 64))
        _, parsed = timed(
            lambda: (
                read(EncryptedShares, unwrap(state.shares_sent).body),
                read(RevealedShares, unwrap(opened).body),
            )
        )
        _, own_mask = timed(lambda: np.subtract(total, self.listed.own_mask(bytes(32), 0), out=total), 5)
        neighbour = self.listed.neighbours(0)[0]
        _, pair = timed(lambda: self.listed.add_pair_mask(total, private, 0, neighbour), 5)
        lost = self.count - included
        self.spent.server_ms += self.count * (combined / 64 + parsed) + included * own_mask
        self.spent.server_ms += lost * pair * degree.neighbours * included / self.count

    def text(self, index: int, body: bytes) -> bytes:
        """Return what a member signs."""
        return to_sign(Kind.SUM_LIST, "f", self.names[index], body)

    def head(self, index: int, like: bytes) -> bytes:
        """Return what a member signs of a vector."""
        return wrap(Kind.SUM_VECTOR, "f", self.names[index], unwrap(like).body, self.devices[self.names[index]].sign)

    def step(self, name: str, state: client.ClientState, kind: ServerMessage, body: bytes) -> client.ClientStep:
        """Take a message of the server."""
        return client.step(self.devices[name], state, FromServer(kind, body))

    def _all_keys(self, begun: dict[str, client.ClientStep]) -> None:
        for name, step in begun.items():
            assert step.message is not None
            self.state = server.step(self.state, FromDevice(name, step.message.kind, step.message.payload)).state

    def closed(self) -> bytes:
        """Let the server make the list."""
        closing, ms = timed(lambda: server.step(self.state, StageClosed()))
        self.state = closing.state
        self.spent.server_ms += ms
        return bytes(self.state.members)

    def dealt(self, begun: dict[str, client.ClientStep], members: bytes) -> Iterator[tuple[int, EncryptedShares]]:
        """Let the device's neighbours deal."""
        for index in self.listed.neighbours(0):
            name = self.names[index]
            step = self.step(name, begun[name].state, ServerMessage.MEMBERS, members)
            assert step.message is not None
            yield index, read(EncryptedShares, unwrap(step.message.payload).body)

    def delivered(self, state: client.ClientState, dealt: dict[int, EncryptedShares]) -> bytes:
        """Let the server take one device's shares and relay its neighbours'."""
        self.take(self.state, FromDevice(state.device, Kind.SUM_SHARES, state.shares_sent))
        shares = tuple(
            SealedShare(sender=index, sealed=own.sealed[self.listed.neighbours(index).index(0)])
            for index, own in dealt.items()
        )
        everybody = tuple(range(self.count))
        message = DeliveredShares(members=self.listed.digest, dealers=everybody, shares=shares)
        body, ms = timed(lambda: written(message))
        self.spent.server_ms += ms * self.count
        return body


def main() -> None:
    """Print a line of the table for each number of devices and vector."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--whole", type=int, default=100, help="devices that all run, at most")
    arguments = parser.parse_args()
    print("| devices | neighbours, threshold | vector | bits | device | server | up | down |")
    for count in arguments.devices:
        for name, length in LENGTHS.items():
            bits: masks.Bits = 32 if count * BOUNDS[name] < 1 << 31 else 64
            spent = Sample(count, length, bits, BOUNDS[name]).run()
            if count <= arguments.whole:
                spent.server_ms = whole_server_ms(count, length, bits, BOUNDS[name])
            degree = degree_for(count, 200, 200)
            print(
                f"| {count:,} | {degree.neighbours}, {degree.threshold} | {name} | {bits} | {spent.client_ms:.0f} ms | "
                f"{spent.server_ms / 1000:.2f} s | {spent.up / 1e6:.3f} MB | {spent.down / 1e6:.3f} MB |",
                flush=True,
            )
            if spent.by_stage:
                print("  " + ", ".join(f"{stage} {ms:.0f} ms" for stage, ms in spent.by_stage.items()), flush=True)


if __name__ == "__main__":
    main()
