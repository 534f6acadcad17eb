"""FedAvg once more, from the papers alone: torch's layers, torch's optimizers and a loop; nothing of Gaitway.

What `sim` must agree with in its scores. Losses, networks, aggregation, batches and scores are written here a second
time on purpose: a fault that all of Gaitway's own paths share shows only against something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional

Windows = tuple[Tensor, Tensor]  # x, y
Build = Callable[[], nn.Module]


def fedavg(
    build: Build,
    train: Mapping[str, Windows],
    test: Mapping[str, Windows],
    *,
    rounds: int,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    batch: int,
    seed: int,
) -> dict[str, float]:
    """Train by McMahan et al. (2017), algorithm 1, one epoch a round; macro-F1 in percent after the last round.

    personalization: mean over clients of the model that a client has trained, on its own test set; global: the
    server's model on all test sets as one.
    """
    torch.manual_seed(seed)
    server = build()
    for _ in range(rounds):
        trained = {}
        for name, (x, y) in train.items():
            model = deepcopy(server).train()
            steps = optimizer(list(model.parameters()))
            for rows in torch.split(torch.randperm(len(y)), batch):
                steps.zero_grad()
                functional.cross_entropy(model(x[rows]), y[rows]).backward()
                steps.step()
            trained[name] = model
        total = sum(len(y) for _, y in train.values())
        states = [(len(train[name][1]) / total, model.state_dict()) for name, model in trained.items()]
        server.load_state_dict({key: sum(share * state[key] for share, state in states) for key in states[0][1]})
    own = [macro_f1(trained[name], *test[name]) for name in train]
    everybody = (torch.cat([part[i] for part in test.values()]) for i in (0, 1))
    return {"personalization": float(np.mean(own)), "global": macro_f1(server, *everybody)}


@torch.no_grad()
def macro_f1(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """In percent, over the classes that are present or predicted."""
    found = torch.cat([model.eval()(part).argmax(1) for part in torch.split(x, 512)])
    return 100 * float(f1_score(y.numpy(), found.numpy(), average="macro", zero_division=0))


class HarCnn(nn.Module):
    """The HAR CNN: three convolutions with GroupNorm, mean over time, two dense layers; 123,302 parameters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, out, stride in ((6, 64, 4), (64, 96, 2), (96, 192, 1)):
            layers += [nn.Conv1d(channels, out, 3 * stride, stride, stride), nn.GroupNorm(8, out), nn.SiLU()]
        self.base = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(192, 128), nn.SiLU(), nn.Dropout(0.3), nn.Linear(128, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Map windows (B, 128, 6) to logits."""
        return self.head(self.base(x.transpose(1, 2)).mean(-1))


class MnistCnn(nn.Module):
    """Tan et al.'s network in their code, but for its dropout."""

    def __init__(self) -> None:
        super().__init__()
        stages = [layer for i, o in ((1, 10), (10, 20)) for layer in (nn.Conv2d(i, o, 5), nn.MaxPool2d(2), nn.ReLU())]
        self.layers = nn.Sequential(*stages, nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 1, 28, 28) to logits."""
        return self.layers(x)


class Hart(nn.Module):
    """HART (Ek et al. 2023) without dropout and stochastic depth: patches, branches on 1/4, 1/2, 1/4 of the width."""

    def __init__(self, classes: int, *, width: int, blocks: int, head_width: int) -> None:
        super().__init__()
        self.patches = nn.ModuleList(nn.Conv1d(3, width // 2, 16, 16) for _ in range(2))
        self.position = nn.Parameter(0.02 * torch.randn(8, width))
        self.blocks = nn.Sequential(*(HartBlock(width, kernel) for kernel in (3, 7, 15, 31, 31, 31)[:blocks]))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Sequential(nn.Linear(width, head_width), nn.SiLU(), nn.Linear(head_width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Map windows (B, 128, 6) to logits."""
        sensors = zip(self.patches, (x[..., :3], x[..., 3:]), strict=True)
        tokens = torch.cat([patch(part.transpose(1, 2)).transpose(1, 2) for patch, part in sensors], -1)
        return self.head(self.norm(self.blocks(tokens + self.position)).mean(1))


class HartBlock(nn.Module):
    """Pre-norm: attention, lightweight convolution along time, attention; then an MLP."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.quarter, inner = width // 4, 3 * (width // 4)  # three heads, each as wide as the input
        self.first, self.second = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.into = nn.ModuleList(nn.Linear(self.quarter, 3 * inner) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(inner, self.quarter) for _ in range(2))
        self.kernels = nn.Parameter(nn.init.xavier_uniform_(torch.empty(4, kernel)))
        self.mlp = nn.Sequential(nn.Linear(width, 384), nn.SiLU(), nn.Linear(384, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, 8, width) to (B, 8, width)."""
        q = self.quarter
        acc, both, gyro = self.first(x).split([q, 2 * q, q], -1)
        x = x + torch.cat([self.attend(0, acc), self.light(both), self.attend(1, gyro)], -1)
        return x + self.mlp(self.second(x))

    def attend(self, sensor: int, x: Tensor) -> Tensor:
        """Attend over the tokens of one sensor (B, 8, width/4)."""
        query, key, value = (part.unflatten(-1, (3, -1)).transpose(1, 2) for part in self.into[sensor](x).chunk(3, -1))
        return self.out[sensor](functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))

    def light(self, x: Tensor) -> Tensor:
        """Convolve each of four heads of channels (B, 8, width/2) along time by its own softmax kernel."""
        channels, kernel = x.shape[-1], self.kernels.shape[1]
        weight = torch.softmax(self.kernels, -1).repeat_interleave(channels // 4, 0)[:, None]
        return functional.conv1d(x.transpose(1, 2), weight, padding=kernel // 2, groups=channels).transpose(1, 2)
