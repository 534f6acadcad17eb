"""The limit: one network trained on as many examples as a round has, at its best batch size, without any federation."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from contestant import play
from workloads import Work, logits


def prepare(work: Work, threads: int, device: str = "cpu") -> Callable[[], object]:
    """Return the training that a round's examples take."""
    torch.set_num_threads(threads)
    network, batch = work.network().train().to(device), work.centralized_batch
    optimizer = work.new_optimizer(network.parameters())
    count = work.examples_a_round
    x = torch.randn(min(count, 4096), *work.shape, device=device)
    y = torch.randint(work.classes, (len(x),), device=device)

    def one_round() -> None:
        for start in range(0, count, batch):
            rows = torch.arange(start, min(start + batch, count)) % len(x)
            optimizer.zero_grad()
            F.cross_entropy(logits(network, x[rows]), y[rows]).backward()
            optimizer.step()

    return one_round


if __name__ == "__main__":
    play(prepare)
