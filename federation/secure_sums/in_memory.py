"""Runs a secure sum with devices and server in one process, for simulations, tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from federation.secure_sums import client, server
from federation.secure_sums.client import ClientState
from federation.secure_sums.messages import (
    FromDevice,
    FromServer,
    ServerMessage,
    StageClosed,
    SumDevice,
    SumRequest,
    ToDevice,
    ToServer,
    VectorReady,
)
from federation.secure_sums.server import ServerStage, ServerState

STAGES = (ServerStage.KEYS, ServerStage.SHARES, ServerStage.VECTORS, ServerStage.LISTS, ServerStage.OPENING)


@dataclass
class ProtocolCost:
    """What one end has spent; seconds are processor time."""

    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass
class InMemorySum:
    """Carries messages between the state machines; a device in `lost` answers nothing from that stage on."""

    devices: Mapping[str, SumDevice]
    request: SumRequest
    vectors: Mapping[str, VectorReady]
    lost: Mapping[str, ServerStage] = field(default_factory=dict)
    states: dict[str, ClientState] = field(default_factory=dict)
    costs: dict[str, ProtocolCost] = field(default_factory=dict)
    server_seconds: float = 0.0
    on_vector: Callable[[str, bytes], None] = lambda _device, _vector: None

    def run(self) -> ServerState:
        """Run all stages, each until everybody who is there has answered."""
        identities = {name: device.identity for name, device in self.devices.items()}
        began = server.begin(self.request, identities)
        state, messages = began.state, began.messages
        for stage in STAGES:
            for message in messages:
                if not self._is_lost(message.device, stage):
                    state = self._answered(state, message)
            state, messages = self._taken(state, StageClosed())
            if state.stage is ServerStage.FAILED:
                break
        return state

    def _is_lost(self, device: str, stage: ServerStage) -> bool:
        return device in self.lost and STAGES.index(stage) >= STAGES.index(self.lost[device])

    def _answered(self, state: ServerState, message: ToDevice) -> ServerState:
        cost, own = self.costs.setdefault(message.device, ProtocolCost()), self.devices[message.device]
        cost.bytes_down += len(message.body) + len(message.shared)
        begun = time.process_time()
        if message.kind is ServerMessage.REQUEST:
            answer = client.begin(own, message.body)
        else:
            answer = client.step(
                own, self.states[message.device], FromServer(message.kind, message.body, message.shared)
            )
        if message.kind is ServerMessage.SHARES:
            answer = client.step(own, answer.state, self.vectors[message.device])
        cost.seconds += time.process_time() - begun
        self.states[message.device] = answer.state
        return state if answer.message is None else self._sent(state, message.device, answer.message, cost)

    def _sent(self, state: ServerState, device: str, message: ToServer, cost: ProtocolCost) -> ServerState:
        cost.bytes_up += len(message.payload) + len(message.vector)
        if message.vector:
            self.on_vector(device, message.vector)
        return self._taken(state, FromDevice(device, message.kind, message.payload, message.vector))[0]

    def _taken(self, state: ServerState, event: FromDevice | StageClosed) -> tuple[ServerState, tuple[ToDevice, ...]]:
        begun = time.process_time()
        taken = server.step(state, event)
        self.server_seconds += time.process_time() - begun
        return taken.state, taken.messages


def added(vectors: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    """Add vectors in the clear: what a secure sum must give, bit for bit."""
    total: NDArray[np.int64] = np.sum(np.stack(list(vectors.values())), axis=0, dtype=np.int64)
    return total
