"""Seeded dropout: the hash, the rate, and masks that depend on nothing but the state and the index."""

import pytest
import torch
from torch.func import functional_call, vmap

from models import OptionError
from models.layers.dropout import ChannelDropout, Dropout, DropPath, keep_mask, lowbias32


def lowbias32_of_an_int(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ (x >> 16)


def test_the_hash_equals_its_definition_on_unsigned_integers() -> None:
    values = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF]
    signed = torch.tensor([v - 2**32 if v >= 2**31 else v for v in values], dtype=torch.int32)
    assert [h % 2**32 for h in lowbias32(signed).tolist()] == [lowbias32_of_an_int(v) for v in values]


@pytest.mark.parametrize("drop", [0.1, 0.3, 0.9])
def test_the_rate_and_the_expectation(drop: float) -> None:
    layer = Dropout(drop)
    out = layer(torch.ones(200_000))
    # Five standard deviations of a Bernoulli mean.
    bound = 5 * (drop * (1 - drop) / 200_000) ** 0.5
    assert abs((out == 0).float().mean().item() - drop) < bound
    assert torch.allclose(out[out != 0], torch.tensor(1 / (1 - drop)))


def test_masks_of_neighbouring_states_and_places_are_independent() -> None:
    masks = torch.stack([keep_mask(torch.tensor(s), 20_000, 0.5) for s in [0, 1, 2, 2**31, 2**40, 2**40 + 1]])
    correlation = torch.corrcoef(masks.float()) - torch.eye(len(masks))
    assert correlation.abs().max() < 5 / 20_000**0.5
    shifted = torch.corrcoef(torch.stack([masks[0, 1:], masks[0, :-1]]).float())[0, 1]
    assert abs(shifted) < 5 / 20_000**0.5


def test_the_state_advances_by_rebinding_in_training_only() -> None:
    layer = Dropout(0.5)
    state, value = layer.noise_state, layer.noise_state.item()
    x = torch.ones(64)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert state.item() == value
    assert layer.noise_state.item() == value + 2
    layer.eval()
    assert layer(x) is x
    assert layer.noise_state.item() == value + 2


def test_zero_probability_is_the_identity_and_costs_no_state() -> None:
    layer = Dropout(0.0)
    state, x = layer.noise_state, torch.ones(3)
    assert layer(x) is x
    assert layer.noise_state is state


@pytest.mark.parametrize("kind", [Dropout, DropPath, ChannelDropout])
def test_real_examples_of_a_padded_batch_get_the_masks_of_the_short_one(kind: type[Dropout]) -> None:
    short, padded = kind(0.4), kind(0.4)
    padded.noise_state = short.noise_state
    x = torch.randn(8, 3, 5)
    assert torch.equal(padded(x)[:5], short(x[:5]))


@pytest.mark.parametrize("kind", [Dropout, DropPath, ChannelDropout])
def test_stacked_masks_equal_single_ones(kind: type[Dropout]) -> None:
    layer, x, states = kind(0.4), torch.randn(4, 6, 3, 2), torch.tensor([5, 6, 2**33, 0])

    def call(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = functional_call(layer, {"noise_state": state}, (x,))
        return out

    stacked = vmap(call)(states, x)
    assert torch.equal(stacked, torch.stack([call(s, row) for s, row in zip(states, x, strict=True)]))


def test_drop_path_drops_whole_examples() -> None:
    out = DropPath(0.5)(torch.ones(1000, 4))
    assert torch.equal((out == 0).all(dim=1), (out == 0).any(dim=1))
    assert 400 < (out[:, 0] == 0).sum() < 600


def test_channel_dropout_drops_whole_maps() -> None:
    out = ChannelDropout(0.5)(torch.ones(100, 10, 3, 2)).flatten(2)
    assert torch.equal((out == 0).all(dim=2), (out == 0).any(dim=2))
    assert 400 < (out[:, :, 0] == 0).sum() < 600
    assert len((out[:, :, 0] == 0).unique(dim=0)) > 50


def test_a_probability_out_of_range_is_refused() -> None:
    with pytest.raises(OptionError, match=r"1\.0"):
        Dropout(1.0)
