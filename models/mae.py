"""Masked autoencoding of windows: HART, with or without ALP layers, learns to restore what it does not see.

He et al., 'Masked Autoencoders Are Scalable Vision Learners', CVPR 2022, arXiv 2111.06377.
On HART: Ek et al., FedAli, 2024, section 5 'Pretraining' and appendix E: Adam 3e-4, batch 128, 200 epochs. The paper
masks 60 % of a window. Its authors' code floors 0.6 · 8 patches, so it hides 4 of 8 (50 %), and so does `masked=0.6`,
the default: weights compare with those of their code. `masked=0.625` hides 5 (62.5 %), the nearest to 60 %.

Differs from the authors' code: tokens keep the order of time, in the encoder and before the decoder (theirs come
in random order, the masked ones last, so that LightConv and the last dense layer do not know what stood where);
the mask token is a vector of the token width (theirs is a patch, embedded like the others); the decoder is as
wide as the encoder, so no dense layer leads into it.

The task `masked_reconstruction` trains it as any other network, in one place or as a federation. The decoder is its
`head`: what a method keeps on the client of a classifier's head, it keeps of the decoder.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gaitway.input_spec import HEAD
from models.errors import OptionError
from models.hart import CHANNELS, PATCH, TOKENS, WINDOW, Block, Hart
from models.layers.alp import BlockOptions
from models.layers.dropout import lowbias32, uniform_words
from models.model import Model

KERNELS = (3, 7, 7, 15)
ENCODER = "encoder."
"""How the names of the encoder's parameters and buffers begin; the rest is their name in the model alone."""
_STEPS = 1 << 10  # of a window's values, when they decide on its mask


class Restoration(NamedTuple):
    """Features (B, D), the mean of the visible tokens; the window restored (B, 128, 6); what was hidden (B, 128, 1)."""

    features: Tensor
    window: Tensor
    hidden: Tensor


class Decoder(nn.Module):
    """Blocks of HART and a dense layer, from eight tokens to the whole window."""

    def __init__(self, width: int, kernels: Sequence[int], heads: int, mlp: int, dropout: float) -> None:
        super().__init__()
        last = max(1, len(kernels) - 1)
        self.mask_token = nn.Parameter(torch.randn(width) * 0.02)
        self.blocks = nn.ModuleList(
            Block(width, heads, kernel, mlp, BlockOptions(dropout, dropout * i / last))
            for i, kernel in enumerate(kernels)
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.restore = nn.Linear(TOKENS * width, WINDOW * CHANNELS)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map tokens (B, 8, D) to windows (B, 128, 6)."""
        for block in self.blocks:
            tokens = block(tokens, mask)
        window: Tensor = self.restore(self.norm(tokens).flatten(1)).view(len(tokens), WINDOW, CHANNELS)
        return window


class MaskedAutoencoder(nn.Module):
    """`encoder` sees the patches that are not masked; `head`, four HART blocks and a dense layer, restores the window.

    ⌊`masked` · 8⌋ of a window's 8 patches are masked: 4 for 0.6, 5 for 0.625.
    It takes the encoder over, whose own head goes. In training each step masks other patches, by the buffer
    `noise_state` and an example's place in the batch, as dropout does; in evaluation a window's mask is a function of
    the window alone, so that it is the same in any batch, round and run.
    """

    noise_state: Tensor

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
            hidden = f"hides {TOKENS - self.visible} of {TOKENS} patches"
            raise OptionError(
                f"masked={masked} {hidden}, kernels={list(kernels)}: expected 1 to 7 patches, and a kernel"
            )
        self.encoder, self.feature_dim = encoder, encoder.feature_dim
        encoder.head = nn.Identity()
        self.head = Decoder(encoder.feature_dim, kernels, heads, mlp, dropout)
        self.register_buffer("noise_state", torch.empty((), dtype=torch.int64).random_(1 << 31))  # as Dropout

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Restoration:
        """Mask windows x (B, 128, 6) and restore them; mask (B,) is 0 for padding."""
        index = self._visible_patches(x)
        tokens = self.encoder.embed(x)
        at = index[:, :, None].expand(*index.shape, tokens.shape[-1])
        encoded = self.encoder.encode(tokens.gather(1, at), mask)
        window = self.head(self._fill(encoded + self.encoder.position[index], index), mask)
        hidden = (~_among(index)).to(x.dtype).repeat_interleave(PATCH, 1)[:, :, None]
        return Restoration(encoded.mean(dim=1), window, hidden)

    def _fill(self, encoded: Tensor, index: Tensor) -> Tensor:
        """Put visible tokens (B, V, D) back in their places, and mask tokens with positions in the others."""
        blank = (self.head.mask_token + self.encoder.position).expand(len(index), -1, -1)
        return blank.scatter(1, index[:, :, None].expand_as(encoded), encoded)

    def _visible_patches(self, x: Tensor) -> Tensor:
        if not self.training:
            return visible_patches_of(x, self.visible)
        index = visible_patches(self.noise_state, len(x), self.visible)
        self.noise_state = self.noise_state + 1
        return index


def visible_patches(seed: Tensor, batch: int, visible: int) -> Tensor:
    """Return the indices (B, visible), in rising order, of the patches that stay, from a scalar int64 seed.

    Example b gets the same patches in any batch, alone or stacked; no random generator is touched.
    """
    return _first(uniform_words(seed, batch * TOKENS).view(batch, TOKENS), visible)


def visible_patches_of(x: Tensor, visible: int) -> Tensor:
    """Return the same for windows x (B, 128, 6), each from its own values, whatever batch it stands in."""
    # a sum of whole numbers does not depend on the order of its terms
    own = (x.detach() * _STEPS).nan_to_num().round().long().flatten(1).sum(1).to(torch.int32)
    place = torch.arange(TOKENS, dtype=torch.int32, device=x.device)
    return _first(lowbias32(lowbias32(own)[:, None] + place), visible)


def _first(words: Tensor, visible: int) -> Tensor:
    order = words.argsort(dim=1, stable=True)
    return order[:, :visible].sort(dim=1).values


def with_decoder(model: Model, decoder: Mapping[str, Any] | None) -> nn.Module:
    """Return the network that a task trains: the model itself, or a masked autoencoder with it as the encoder.

    `decoder` are the keywords of `MaskedAutoencoder`, or None. Raises OptionError if the model cannot be an encoder.
    """
    if decoder is None:
        return model
    if not isinstance(model, Hart):
        raise OptionError(
            f"{type(model).__name__} cannot be the encoder of a masked autoencoder; expected the model hart or hart_alp"
        )
    return MaskedAutoencoder(model, **decoder)


def is_autoencoder_state(state: Mapping[str, Tensor]) -> bool:
    """Whether parameters and buffers by name are those of a masked autoencoder."""
    return any(name.startswith(ENCODER) for name in state)


def encoder_state(state: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """Return a state for `model` (Hart or HartAlp, any classes): an autoencoder's encoder, the model's own fresh head.

    Raises OptionError if encoder and model are not of the same sizes.
    """
    own = model.state_dict()
    encoder = {name.removeprefix(ENCODER): value for name, value in state.items() if name.startswith(ENCODER)}
    base = {name: value for name, value in own.items() if not name.startswith(HEAD)}
    shapes = [{name: value.shape for name, value in part.items()} for part in (base, encoder)]
    if differing := sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()}):
        raise OptionError(f"the encoder and the model differ in {differing[:5]}; build both with equal options")
    return {**own, **encoder}


def _among(index: Tensor) -> Tensor:
    """Return (B, 8) bool: whether a patch is among the indices (B, V)."""
    return (index[:, :, None] == torch.arange(TOKENS, device=index.device)).any(dim=1)
