"""Keeps no client: for methods whose clients begin every round with nothing but what the server sends."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from federation.records import Broadcast, Client
from federation.records.tree import flatten, map_tree
from federation.training.forward import NOISE_STATE
from federation.training.local_round import LocalRound, Setup
from sim.engines.client_store.memory import Result
from sim.errors import SettingsError
from sim.experiment.architectures import Architecture


class NullStore:
    """Lets a client go with its round: memory grows with the cohort, not with the federation."""

    def put(self, result: LocalRound) -> tuple[None, Result]:
        """Return only what the round needs."""
        return None, result


def remembered(setup: Setup, client: Client, broadcast: Broadcast) -> str | None:
    """Name what the next round would miss of a client; None where the server sends everything anew.

    A tensor counts as sent only if `receive` hands on the broadcast's very own: one that is computed may have the
    client's in it. Dropout's counters are set in each round.
    """
    # at first a client and the server may have the same tensors
    client = Client(*(map_tree(torch.clone, part) for part in client))
    received, round_state = setup.method.receive(client, broadcast)
    sent = {id(value) for value in flatten(broadcast).values()}
    parts = {
        "memory": client.memory,
        "parameter": received.params,
        "buffer": received.buffers,
        "former": round_state,
    }
    for part, tree in parts.items():
        for name, value in flatten(tree).items():
            if id(value) not in sent and not name.endswith(NOISE_STATE):
                return f"{part} {name}"
    return None


def check_forgetting(networks: Sequence[Architecture], broadcast: Broadcast, precision: str) -> None:
    """Refuse to forget clients that the next round would miss.

    Raises:
        SettingsError: saying what of them it would miss.
    """
    method = networks[0].setup.method
    if not method.has_global_model:
        raise SettingsError(
            f"--client-store none: {method.name} has no server model, so nothing would be left to score; "
            "use --client-store auto, memory or disk"
        )
    needed = "its residual" if precision == "int8" else None
    for network in networks:
        needed = needed or remembered(network.setup, network.initial, broadcast)
    if needed:
        raise SettingsError(
            f"--client-store none: with {method.name} and {precision} uploads a client begins a round with what it had "
            f"before ({needed}); use --client-store auto, memory or disk"
        )
