"""A torch module as a pure function of parameters and buffers, its inputs, and CUDA settings that match the CPU.

Images are bytes until they are looked at: (x / 255 − mean) / std by channel, batch by batch. An image's bytes take a
quarter of its float32 numbers, and the conversion is two exactly rounded operations an element: the numbers are the
same whenever, and on whatever engine or device, it is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from federation.errors import SettingsError
from federation.records import Client, Forward, Output, Tensors
from federation.seeds import noise_seed, seed_for

NOISE_STATE = "noise_state"
"""Buffers of this name hold the counter that a seeded dropout layer draws its masks from."""


class Network(NamedTuple):
    """One network as two pure functions of parameters, buffers, examples and mask."""

    train: Forward
    evaluate: Forward
    features_at: str = "head"  # where features are taken (a network's `features_at`)


def network(module: nn.Module, *, autocast: torch.dtype | None = None) -> Network:
    """Return the module's training and evaluation functions; both compute products in `autocast`, if it is given."""
    train, evaluate = (functional(module, training=training, autocast=autocast) for training in (True, False))
    return Network(train, evaluate, getattr(module, "features_at", "head"))


def functional(module: nn.Module, *, training: bool, autocast: torch.dtype | None = None) -> Forward:
    """Return forward(params, buffers, x, mask) -> Output.

    `module(x, mask)` must return (features, logits), or (features, logits, hidden) where it restores what was hidden
    from it (`Output`); a layer with state rebinds its buffer while it runs
    (`self.prototypes = moved`), and what it left there comes back in `Output.buffers`.

    Within the module torch casts what it deems safe (convolutions, matrix products) to `autocast`: mixed precision.
    What comes back has the dtype of `x` and of `buffers`, so losses, statistics and optimizers know nothing of it.
    """

    # looked for once: torch's functional_call searches every submodule at every call, a fifth of a small step
    places = _places(module)

    def forward(params: Tensors, buffers: Tensors, x: Tensor, mask: Tensor | None = None) -> Output:
        if module.training != training:  # it visits every submodule
            module.train(training)
        given = {**params, **buffers}
        own = [(place, place.table[place.key]) for name in given for place in places[name]]  # put back at the end
        try:
            for name, tensor in given.items():
                for table, key in places[name]:
                    table[key] = tensor
            with _casting(x.device, autocast):
                features, logits, *hidden = module(x, mask)
            moved: Tensors = {name: table[key] for name in buffers for table, key in places[name][:1]}
        finally:
            for (table, key), tensor in own:
                table[key] = tensor
        kept = {name: moved[name].to(before.dtype) for name, before in buffers.items()}
        return Output(features.to(x.dtype), logits.to(x.dtype), kept, *hidden)

    return forward


def _casting(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    # torch would keep cast weights for a second use, by the identity of tensors that under vmap are wrappers
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype, cache_enabled=False)


class _Place(NamedTuple):
    """Where a module holds one of its parameters or buffers."""

    table: dict[str, Any]
    key: str


def _places(module: nn.Module) -> dict[str, list[_Place]]:
    """Return for the full name of each parameter and buffer where it is: a parameter that layers share, in several."""
    found: dict[str, list[_Place]] = {}
    of_parameters: dict[int, list[_Place]] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        before = f"{prefix}." if prefix else ""
        for key, parameter in part._parameters.items():
            found[before + key] = of_parameters.setdefault(id(parameter), [])
            found[before + key].append(_Place(part._parameters, key))
        found |= {before + key: [_Place(part._buffers, key)] for key in part._buffers}
    return found


def initial_model(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a network whose initial weights depend on the seed alone; torch's global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "model"))
        return build()


def initial_client(module: nn.Module) -> Client:
    """Copy a module's parameters and buffers into a client that has not taken part in anything yet."""
    params = {name: value.detach().clone() for name, value in module.named_parameters()}
    buffers = {name: value.detach().clone() for name, value in module.named_buffers(remove_duplicate=False)}
    return Client(params, buffers, {})


def reseed(client: Client, seed: int, client_id: str, round_number: int) -> Client:
    """Set every dropout counter from (seed, client, round, layer): the same masks on any engine or device."""
    buffers = {
        name: value.new_full(value.shape, _noise(seed, client_id, round_number, name, value))
        if name.endswith(NOISE_STATE)
        else value
        for name, value in client.buffers.items()
    }
    return client._replace(buffers=buffers)


def _noise(seed: int, client_id: str, round_number: int, name: str, like: Tensor) -> int:
    return noise_seed(seed, client_id, round_number, name, 31 if like.element_size() == 4 else 62)


class Moments(NamedTuple):
    """Mean and standard deviation of each channel, of pixels between 0 and 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalized(self, x: Tensor) -> Tensor:
        """Turn bytes (..., C, H, W) into float32 of mean 0 and deviation 1."""
        mean, std = np.array(self.mean), np.array(self.std)
        # one multiplication and one subtraction in float32: (x/255 − m)/s = x·a − b
        scale, shift = (
            torch.from_numpy(array.astype(np.float32)).to(x.device).view(-1, 1, 1)
            for array in (1 / (255 * std), mean / std)
        )
        return (x * scale).sub_(shift)


def network_input(x: Tensor, moments: Moments | None) -> Tensor:
    """Return examples as a network takes them: bytes of images normalized, anything else as it is.

    Raises:
        SettingsError: for bytes that nothing is known of.
    """
    if x.dtype != torch.uint8:
        return x
    if moments is None:
        raise SettingsError(
            f"examples are bytes {tuple(x.shape)}, and nothing says how they are normalized; give the channels' "
            "moments (Setup.moments) with them, or numbers"
        )
    return moments.normalized(x)


CUBLAS_WORKSPACE, DETERMINISTIC_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Without it a product's sums may be in another order in another run (NVIDIA, cuBLAS: Results Reproducibility)."""


def reserve_workspace() -> None:
    """Ask cuBLAS for sums in one order; it reads this when CUDA begins, so call this before."""
    os.environ.setdefault(CUBLAS_WORKSPACE, DETERMINISTIC_WORKSPACE)


def compute_reproducibly() -> None:
    """Have this process compute in float32, always by the same algorithms; an operator that has none warns."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # fresh memory is written before it is read; to fill it too would cost a kernel for each tensor
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
