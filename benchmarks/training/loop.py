"""A plain PyTorch loop over clients, one after the other, as papers' own code has it; fedproto sample by sample.

On a GPU all examples lie there, and batches are rows of them: a DataLoader would fetch them one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from contestant import play
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from workloads import Work, logits


def prepare(work: Work, threads: int, device: str = "cpu") -> Callable[[], object]:
    """Return one round of FedAvg, or of FedProto."""
    torch.set_num_threads(threads)
    sets = [
        TensorDataset(torch.from_numpy(each.x).to(device), torch.from_numpy(each.y).to(device))
        for each in work.clients()
    ]
    draw = np.random.default_rng(0)
    if work.method == "fedproto":
        return _fedproto(work, sets)
    network = work.network().train().to(device)
    shared = {name: value.clone() for name, value in network.state_dict().items()}

    def one_round() -> None:
        cohort = draw.choice(len(sets), work.cohort, replace=False)
        total, weight = {name: torch.zeros_like(v, dtype=torch.float32) for name, v in shared.items()}, 0
        for k in cohort:
            network.load_state_dict(shared)
            _train(work, network, sets[k])
            weight += len(sets[k])
            for name, value in network.state_dict().items():
                total[name] += value.float() * len(sets[k])
        for name, value in total.items():
            shared[name] = (value / weight).to(shared[name].dtype)

    return one_round


def _train(work: Work, network: nn.Module, examples: TensorDataset) -> None:
    optimizer = work.new_optimizer(network.parameters())
    for _ in range(work.epochs):
        for x, y in _batches(examples, work.batch):
            optimizer.zero_grad()
            F.cross_entropy(logits(network, x), y).backward()
            optimizer.step()


def _batches(examples: TensorDataset, size: int) -> Iterable[Sequence[Tensor]]:
    x, y = examples.tensors
    if not x.is_cuda:
        return DataLoader(examples, size, shuffle=True)
    return [(x[rows], y[rows]) for rows in torch.randperm(len(y), device=x.device).split(size)]


def _fedproto(work: Work, sets: list[TensorDataset]) -> Callable[[], object]:
    """Tan et al. as their published code goes about it: lists of features a class, and a loop over a batch's labels."""
    first = work.network().train()
    networks = [copy.deepcopy(first) for _ in sets]
    shared: dict[int, Tensor] = {}

    def one_round() -> None:
        gathered: dict[int, list[Tensor]] = {}
        for network, examples in zip(networks, sets, strict=True):
            for label, features in _train_with_prototypes(work, network, examples, shared).items():
                gathered.setdefault(label, []).append(torch.stack(features).mean(0))
        shared.update({label: torch.stack(each).mean(0) for label, each in gathered.items()})

    return one_round


def _train_with_prototypes(
    work: Work, network: nn.Module, examples: TensorDataset, shared: dict[int, Tensor]
) -> dict[int, list[Tensor]]:
    optimizer = work.new_optimizer(network.parameters())
    kept: dict[int, list[Tensor]] = {}
    for _ in range(work.epochs):
        for x, y in DataLoader(examples, work.batch, shuffle=True):
            optimizer.zero_grad()
            output = network(x)
            wanted = output.features.detach().clone()
            for i, label in enumerate(y.tolist()):
                if label in shared:
                    wanted[i] = shared[label]
            loss = F.cross_entropy(output.logits, y) + F.mse_loss(output.features, wanted)
            loss.backward()
            optimizer.step()
            for i, label in enumerate(y.tolist()):
                kept.setdefault(label, []).append(output.features[i].detach())
    return kept


if __name__ == "__main__":
    play(prepare)
