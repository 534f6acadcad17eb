"""Flower's simulation as its tutorials use it: FedAvg or a fedproto of our own on its message API, one core a client.

Run with the interpreter of a virtual environment that has flwr[simulation] and torch.
"""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import logging
import time
from collections.abc import Callable

import torch
from contestant import answer, arguments
from flower_client import client
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import Work


def server_of(work: Work, rounds: int) -> ServerApp:
    """Make the server; it answers after each round."""
    server, clock = ServerApp(), [0.0]

    def told(number: int, arrays: ArrayRecord) -> None:
        now = time.perf_counter()
        if number:
            answer(now - clock[0])
        clock[0] = time.perf_counter()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        if work.method == "fedproto":
            _fedproto(grid, rounds, told)
            return
        share = work.cohort / len(work.sizes)
        strategy = FedAvg(
            fraction_train=share, fraction_evaluate=0.0, min_train_nodes=work.cohort, min_evaluate_nodes=0,
            min_available_nodes=len(work.sizes),
        )  # fmt: skip
        strategy.start(grid, ArrayRecord(work.network().state_dict()), num_rounds=rounds, evaluate_fn=told)

    return server


def _fedproto(grid: Grid, rounds: int, told: Callable[[int, ArrayRecord], None]) -> None:
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    arrays = ArrayRecord()
    told(0, arrays)
    for number in range(1, rounds + 1):
        messages = [Message(RecordDict({"arrays": arrays}), node, "train") for node in nodes]
        replies = [reply.content["arrays"].to_torch_state_dict() for reply in grid.send_and_receive(messages)]
        known = torch.stack([reply["known"] for reply in replies])
        total = torch.stack([reply["prototypes"] * reply["known"][:, None] for reply in replies]).sum(0)
        seen = known.sum(0)
        arrays = ArrayRecord({"prototypes": total / seen.clamp(min=1)[:, None], "known": (seen > 0).float()})
        told(number, arrays)


if __name__ == "__main__":
    wanted = arguments()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app=server_of(wanted.work, wanted.rounds),
        client_app=client,
        num_supernodes=len(wanted.work.sizes),
        backend_config={
            "init_args": {"num_cpus": wanted.threads},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
