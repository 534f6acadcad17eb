"""Masked autoencoding of windows: pretraining for HART, with or without ALP layers, without labels.

He et al., 'Masked Autoencoders Are Scalable Vision Learners', CVPR 2022, arXiv 2111.06377.
On HART: Ek et al., FedAli, 2024, section 5 'Pretraining' and appendix E: 60 % masked, Adam 3e-4, batch 128, 200 epochs.

Differs from the authors' code: tokens keep the order of time, in the encoder and before the decoder (theirs come
in random order, the masked ones last, so that LightConv and the last dense layer do not know what stood where);
the mask token is a vector of the token width (theirs is a patch, embedded like the others); the decoder is as
wide as the encoder, so no dense layer leads into it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.errors import OptionError
from models.hart import CHANNELS, PATCH, TOKENS, WINDOW, Block, Hart
from models.layers.alp import ALP
from models.layers.dropout import uniform_words
from models.model import HEAD

KERNELS = (3, 7, 7, 15)


class Reconstruction(NamedTuple):
    """The decoder's window (B, 128, 6) and which of its patches were masked (B, 8)."""

    window: Tensor
    masked: Tensor


def visible_patches(seed: Tensor, batch: int, visible: int) -> Tensor:
    """Return the indices (B, visible), in rising order, of the patches that stay, from a scalar int64 seed.

    Example b gets the same patches in any batch, alone or stacked; no random generator is touched.
    """
    order = uniform_words(seed, batch * TOKENS).view(batch, TOKENS).argsort(dim=1, stable=True)
    return order[:, :visible].sort(dim=1).values


class MaskedAutoencoder(nn.Module):
    """`encoder` sees the patches that are not masked; four HART blocks and a dense layer restore the window.

    The encoder's own head takes no part. ALP's global prototypes, which training aligns with, move only where the
    training loop calls `renew_global_prototypes`, as a server would after a round.
    """

    def __init__(
        self,
        encoder: Hart,
        *,
        masked: float = 0.6,
        kernels: Sequence[int] = KERNELS,
        heads: int = 3,
        mlp: int = 384,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.visible = TOKENS - int(masked * TOKENS)
        if not 0 < self.visible < TOKENS or not kernels:
            raise OptionError(f"masked={masked}, kernels={list(kernels)}: expected 1 to 7 of 8 patches, and a kernel")
        width, last = encoder.feature_dim, max(1, len(kernels) - 1)
        self.encoder = encoder
        self.mask_token = nn.Parameter(torch.randn(width) * 0.02)
        self.decoder = nn.ModuleList(
            Block(width, heads, kernel, mlp, dropout, dropout * i / last, alp=None) for i, kernel in enumerate(kernels)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.restore = nn.Linear(TOKENS * width, WINDOW * CHANNELS)

    def forward(self, x: Tensor, seed: Tensor, mask: Tensor | None = None) -> Reconstruction:
        """Mask windows x (B, 128, 6) by `seed` (scalar int64) and restore them; mask (B,) is 0 for padding."""
        index = visible_patches(seed, len(x), self.visible)
        tokens = self._fill(self._encode(x, index, mask), index)
        for block in self.decoder:
            tokens = block(tokens, mask)
        window = self.restore(self.norm(tokens).flatten(1)).view(x.shape)
        return Reconstruction(window, ~_among(index))

    def _encode(self, x: Tensor, index: Tensor, mask: Tensor | None) -> Tensor:
        """Return the encoder's tokens (B, V, D) of the visible patches, with their positions added again."""
        tokens = self.encoder.embed(x)
        at = index[:, :, None].expand(*index.shape, tokens.shape[-1])
        encoded = self.encoder.encode(tokens.gather(1, at), mask)
        return encoded + self.encoder.position[index]

    def _fill(self, encoded: Tensor, index: Tensor) -> Tensor:
        """Put visible tokens (B, V, D) back in their places, and mask tokens with positions in the others."""
        blank = (self.mask_token + self.encoder.position).expand(len(index), -1, -1)
        return blank.scatter(1, index[:, :, None].expand_as(encoded), encoded)


def reconstruction_loss(restored: Reconstruction, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean squared error over the masked patches of x (B, 128, 6); padding (mask 0) adds nothing."""
    squares = (restored.window - x).square().reshape(len(x), TOKENS, PATCH * CHANNELS).mean(dim=2)
    weight = restored.masked.to(squares.dtype)
    if mask is not None:
        weight = weight * mask[:, None]
    return (squares * weight).sum() / weight.sum().clamp(min=1.0)


def renew_global_prototypes(module: nn.Module) -> None:
    """Set P_g ← P_l in every ALP layer, as FedAli's server does with one client: k-means of G points into G clusters.

    The layers keep their own P_l, which starts a client's next round from these centres anyway.
    """
    for layer in module.modules():
        if isinstance(layer, ALP):
            layer.global_prototypes = layer.local_prototypes.detach().clone()


def pretrained_state(autoencoder: MaskedAutoencoder, model: Hart) -> dict[str, Tensor]:
    """Return a state for `model` (Hart or HartAlp, any classes): the encoder's, with the model's own fresh head.

    ALP's global prototypes become the local ones, where the last epoch left them: FedAli's server starts from the
    global ones. `autoencoder.encoder.state_dict()` has both as they are.
    Raises OptionError if encoder and model are not of the same sizes.
    """
    own, encoder = model.state_dict(), autoencoder.encoder.state_dict()
    differing = {name for name in own.keys() ^ encoder.keys() if not _in_head(name)}
    state = {name: tensor if _in_head(name) else encoder.get(_source(name), tensor) for name, tensor in own.items()}
    differing |= {name for name in own if state[name].shape != own[name].shape}
    if differing:
        raise OptionError(f"the encoder and the model differ in {sorted(differing)[:5]}; build both with equal options")
    return state


def _in_head(name: str) -> bool:
    return name.startswith(HEAD)


def _source(name: str) -> str:
    return name.replace("global_prototypes", "local_prototypes")


def _among(index: Tensor) -> Tensor:
    """Return (B, 8) bool: whether a patch is among the indices (B, V)."""
    return (index[:, :, None] == torch.arange(TOKENS, device=index.device)).any(dim=1)
