"""Gaitway's contestant: rounds of `sim`, without evaluation; clients are forgotten as `--client-store none` does.

The peers keep no client's model either. Where a method's clients need theirs (fedproto), they stay in memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from contestant import play
from workloads import Work

from federation.plan import ModelSpec, RoundSettings, TrainingConfig
from federation.records import Examples
from federation.training.forward import compute_reproducibly, reserve_workspace
from sim.data.federated_data import ClientData, FederatedData
from sim.engines.client_store import NullStore, remembered
from sim.experiment.settings import Experiment
from sim.run import build_simulation, resolve


def prepare(work: Work, threads: int, device: str = "cpu", *, compiled: bool = False) -> Callable[[], object]:
    """Build the simulation that `python -m sim run` would, with as many processes as cores, or stacked on a GPU."""
    torch.set_num_threads(1)
    if device != "cpu":
        reserve_workspace()
        compute_reproducibly()
    tensors = [
        Examples(torch.from_numpy(each.x).to(device), torch.from_numpy(each.y).to(device)) for each in work.clients()
    ]
    clients = {
        f"client-{k:05}": ClientData(examples, Examples(examples.x[:0], examples.y[:0]))
        for k, examples in enumerate(tensors)
    }
    data = FederatedData(tuple(map(str, range(work.classes))), clients, {}, split_leaks=False)
    settings = Experiment(
        labels=data.labels, dataset="generated", validation_share=0.0,
        model=ModelSpec(name=work.model, options=work.options),
        method={"name": work.method},
        training=TrainingConfig(
            classes=work.classes, epochs=work.epochs, batch_size=work.batch, optimizer=work.optimizer, lr=work.lr,
            feature_dim=int(work.network().feature_dim),
        ),
        rounds=RoundSettings(rounds=1_000_000, clients_per_round=work.cohort),
        engine="auto",
        workers=threads,
        compile=compiled,
        device=device,
        eval_every=1_000_000,
    )  # fmt: skip
    simulation = build_simulation(resolve(settings), data)
    broadcast = simulation.setup.method.broadcast(simulation.state, "")
    if remembered(simulation.setup, simulation.initial, broadcast) is None:
        simulation.client_store = NullStore()
    rounds = simulation.run_rounds()
    return lambda: next(rounds)


if __name__ == "__main__":
    play(prepare)
