"""Networks of a few hundred weights, with an ALP layer, for tasks that the table of models has no network for."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers.alp import ALP
from models.layers.dropout import Dropout, uniform_words

WIDTH, PROTOTYPES = 8, 5
PATCHES = 8


class TinySegmenter(nn.Module):
    """Images (B, 3, H, W) to features (B, 8, H/2, W/2) and logits (B, classes, H, W); ALP's tokens are pixels."""

    def __init__(self, classes: int, *, dropout: float = 0.0, alp: bool = True) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, WIDTH, 3, stride=2, padding=1)
        self.drop = Dropout(dropout)
        self.alp = ALP(WIDTH, PROTOTYPES) if alp else None
        self.head = nn.Conv2d(WIDTH, classes, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        features = self.drop(functional.gelu(self.convolution(x)))
        if self.alp is not None:
            tokens = self.alp(features.flatten(2).transpose(1, 2), mask)
            features = tokens.transpose(1, 2).reshape(features.shape)
        logits = self.head(features)
        return features, functional.interpolate(logits, size=x.shape[2:], mode="bilinear")


class TinyAutoencoder(nn.Module):
    """Windows (B, 128, 6) to features (B, 8) of their visible patches, and all of them restored; half is hidden.

    What is hidden moves with each step in training, and is always the same in evaluation.
    """

    noise_state: Tensor

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(16 * 6, WIDTH)
        self.drop = Dropout(dropout)
        self.alp = ALP(WIDTH, PROTOTYPES)
        self.head = nn.Linear(WIDTH, 128 * 6)
        self.register_buffer("noise_state", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        state = self.noise_state if self.training else torch.zeros_like(self.noise_state)
        order = uniform_words(state, len(x) * PATCHES).view(len(x), PATCHES).argsort(1).argsort(1)
        hidden = (order < PATCHES // 2).to(x.dtype)
        if self.training:
            self.noise_state = self.noise_state + 1
        patches = x.reshape(len(x), PATCHES, 16 * 6) * (1 - hidden)[:, :, None]
        features = self.alp(self.drop(torch.tanh(self.embed(patches))), mask).mean(1)
        return features, self.head(features).view(x.shape), hidden.repeat_interleave(16, 1)[:, :, None]
