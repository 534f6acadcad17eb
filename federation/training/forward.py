"""A torch module as a pure function of parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from federation.records import Client, Forward, Output, Tensors
from federation.seeds import noise_seed, seed_for

NOISE_STATE = "noise_state"
"""Buffers of this name hold the counter that a seeded dropout layer draws its masks from."""


class Network(NamedTuple):
    """One network as two pure functions of parameters, buffers, examples and mask."""

    train: Forward
    evaluate: Forward


def network(module: nn.Module, *, autocast: torch.dtype | None = None) -> Network:
    """Return the module's training and evaluation functions; both compute products in `autocast`, if it is given."""
    return Network(*(functional(module, training=training, autocast=autocast) for training in (True, False)))


def functional(module: nn.Module, *, training: bool, autocast: torch.dtype | None = None) -> Forward:
    """Return forward(params, buffers, x, mask) -> Output.

    `module(x, mask)` must return (features, logits), or (features, logits, hidden) where it restores what was hidden
    from it (`Output`); a layer with state rebinds its buffer while it runs
    (`self.prototypes = moved`), and what it left there comes back in `Output.buffers`.

    Within the module torch casts what it deems safe (convolutions, matrix products) to `autocast`: mixed precision.
    What comes back has the dtype of `x` and of `buffers`, so losses, statistics and optimizers know nothing of it.
    """

    # looked for once: torch searches every submodule at every call
    places, tied = _buffer_places(module), _ties_parameters(module)

    def forward(params: Tensors, buffers: Tensors, x: Tensor, mask: Tensor | None = None) -> Output:
        if module.training != training:  # it visits every submodule
            module.train(training)
        moved: Tensors = {}

        def collect(_module: nn.Module, _inputs: Any, _outputs: Any) -> None:
            moved.update({name: table[key] for name, (table, key) in places.items()})

        # functional_call puts the old buffers back when it returns, so they are read just before it does
        hook = module.register_forward_hook(collect)
        try:
            with _casting(x.device, autocast):
                features, logits, *hidden = functional_call(module, (params, buffers), (x, mask), tie_weights=tied)
        finally:
            hook.remove()
        kept = {name: moved[name].to(before.dtype) for name, before in buffers.items()}
        return Output(features.to(x.dtype), logits.to(x.dtype), kept, *hidden)

    return forward


def _casting(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    # torch would keep cast weights for a second use, by the identity of tensors that under vmap are wrappers
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype, cache_enabled=False)


def _ties_parameters(module: nn.Module) -> bool:
    once, all_names = (len(list(module.named_parameters(remove_duplicate=only))) for only in (True, False))
    return once < all_names


def _buffer_places(module: nn.Module) -> dict[str, tuple[dict[str, Tensor], str]]:
    """Return for each buffer's full name the table that holds it and its name there."""
    return {
        f"{prefix}.{key}" if prefix else key: (part._buffers, key)
        for prefix, part in module.named_modules(remove_duplicate=False)
        for key, value in part._buffers.items()
        if value is not None
    }


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
