"""Small secure sums for the tests: devices with keys, their vectors, and a network that does what a test says."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federation.secure_sums import client, server
from federation.secure_sums.client import ClientState
from federation.secure_sums.membership import membership
from federation.secure_sums.messages import (
    FromDevice,
    FromServer,
    SecureMessage,
    ServerMessage,
    StageClosed,
    SumDevice,
    SumRequest,
    ToDevice,
    ToServer,
    VectorReady,
)
from federation.secure_sums.server import ServerStage, ServerState

LAYOUT, LENGTH, BOUND = bytes(32), 5, 1000
STAGES = (ServerStage.KEYS, ServerStage.SHARES, ServerStage.VECTORS, ServerStage.LISTS, ServerStage.OPENING)
State = TypeVar("State", bound=SecureMessage)
NAMES = tuple(f"device{i:x}" for i in range(12))


@cache
def identity(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def seeded(seed: str) -> Callable[[int], bytes]:
    """Return entropy that comes again with its seed."""
    counter = itertools.count()

    def entropy(size: int) -> bytes:
        return hashlib.shake_256(f"{seed}/{next(counter)}".encode()).digest(size)

    return entropy


def device(name: str, seed: str = "", **more: object) -> SumDevice:
    key = identity(name)
    entropy = {"entropy": seeded(f"{seed}/{name}")} if seed else {}
    return SumDevice(name, key.public_key().public_bytes_raw(), key.sign, **{**entropy, **more})  # type: ignore[arg-type]


def request(**changes: object) -> SumRequest:
    given = {"federation": "walk", "instance": "0" * 32, "round": 1, "attempt": bytes(32), "length": LENGTH, "bits": 32}
    given |= {"layout": LAYOUT, "min_members": 3, "colluding": 200, "lost": 200}
    return SumRequest.model_validate({**given, **changes})


def vectors(names: tuple[str, ...], length: int = LENGTH) -> dict[str, VectorReady]:
    drawn = np.random.default_rng(5).integers(-BOUND, BOUND + 1, (len(names), length))
    return {name: VectorReady(vector, BOUND, LAYOUT) for name, vector in zip(names, drawn, strict=True)}


def reloaded(state: State) -> State:
    """Return a state as a program that was killed finds it: written, and read back."""
    return type(state).model_validate_json(state.model_dump_json())


@dataclass
class Network:
    """Both ends are killed after each event. `deliver` says what becomes of a device's message: in which order, how
    often, changed or not at all."""

    names: tuple[str, ...]
    asked: SumRequest = field(default_factory=request)
    lost: Mapping[str, ServerStage] = field(default_factory=dict)
    deliver: Callable[[ServerStage, list[tuple[str, ToServer]]], Iterator[tuple[str, ToServer]]] = (
        lambda _stage, messages: iter(messages)
    )
    devices: dict[str, SumDevice] = field(default_factory=dict)
    states: dict[str, ClientState] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    history: list[tuple[str, ToServer]] = field(default_factory=list)
    seed: str = ""

    def __post_init__(self) -> None:
        self.devices = {name: device(name, self.seed, groups=self.asked.groups) for name in self.names} | self.devices
        self.vectors = vectors(self.names, self.asked.length // self.asked.groups)

    def run(self) -> ServerState:
        began = server.begin(self.asked, {name: own.identity for name, own in self.devices.items()})
        state, messages = began.state, began.messages
        for stage in STAGES:
            answers = [pair for message in messages for pair in self.answers(stage, message)]
            for name, message in self.deliver(stage, answers):
                self.history.append((name, message))
                state = self.take(state, FromDevice(name, message.kind, message.payload, message.vector))
            closed = server.step(state, StageClosed())
            state, messages = reloaded(closed.state), closed.messages
        return state

    def answers(self, stage: ServerStage, message: ToDevice) -> Iterator[tuple[str, ToServer]]:
        name = message.device
        if name in self.lost and STAGES.index(stage) >= STAGES.index(self.lost[name]):
            return
        own = self.devices[name]
        if message.kind is ServerMessage.REQUEST:
            step = client.begin(own, message.body)
        else:
            step = client.step(own, self.states[name], FromServer(message.kind, message.body, message.shared))
        if message.kind is ServerMessage.SHARES:
            step = client.step(own, reloaded(step.state), self.vectors[name])
        self.states[name] = reloaded(step.state)
        if step.message is not None:
            yield name, step.message

    def take(self, state: ServerState, event: FromDevice) -> ServerState:
        taken = server.step(state, event)
        self.refusals += [taken.refusal] if taken.refusal else []
        return reloaded(taken.state)

    def sum_of(self, state: ServerState) -> np.ndarray:
        """Add up those in the sum, by group, in the clear."""
        found = np.zeros((self.asked.groups, self.asked.length // self.asked.groups), np.int64)
        listed = membership(state.request, state.members)
        for name in server.included_devices(state):
            found[listed.groups[listed.places[name]]] += self.vectors[name].vector
        return found.ravel()
