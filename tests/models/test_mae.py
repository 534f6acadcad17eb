"""Masked autoencoding: what is masked, the network against numpy, padding, stacked clients, and what is handed on."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from gaitway.tasks.masked_reconstruction import MaskedReconstructionTask
from models import OptionError, build
from models.hart import Hart
from models.mae import (
    MaskedAutoencoder,
    Restoration,
    encoder_state,
    visible_patches,
    visible_patches_of,
    with_decoder,
)

SMALL: dict[str, Any] = {"blocks": 2, "feature_dim": 32, "mlp": 24, "head_width": 20}
ALP: dict[str, Any] = SMALL | {"prototypes": [20, 9], "alp": {"prototypes": "local", "gamma": 0.5}}
SEED = torch.tensor(7)


def autoencoder(name: str = "hart", **options: Any) -> MaskedAutoencoder:
    torch.manual_seed(1)
    encoder = build(name, classes=3, **(ALP if name == "hart_alp" else SMALL))
    assert isinstance(encoder, Hart)
    return MaskedAutoencoder(encoder, **({"mlp": 24} | options)).double()


def masked_with(model: MaskedAutoencoder, seed: int | Tensor, *, dropout: bool = True) -> MaskedAutoencoder:
    """Let the next step of training hide what the seed says; without dropout all below it is in evaluation."""
    model.noise_state = torch.as_tensor(seed)
    model.train(dropout).training = True
    return model


def loss_of(restored: Restoration, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean squared error over what was hidden of real examples, as the task has it."""
    real = torch.ones(len(x)) if mask is None else mask
    weight = restored.hidden.expand_as(x) * real[:, None, None]
    return ((restored.window - x).square() * weight).sum() / weight.sum()


def windows(*sizes: int) -> Tensor:
    return torch.randn(*sizes, 128, 6, dtype=torch.float64)


def waves(count: int, seed: int) -> Tensor:
    """Return windows (count, 128, 6) of one sine per example, its phase moving from channel to channel."""
    random = np.random.default_rng(seed)
    pitch, phase = random.uniform(0.5, 3.0, (count, 1, 1)), random.uniform(0, 6.28, (count, 1, 1))
    time, channel = np.arange(128)[:, None] / 50, np.arange(6)
    return torch.from_numpy(np.sin(2 * np.pi * pitch * time + phase + channel).astype(np.float32))


def test_four_of_eight_patches_are_masked_in_equal_shares() -> None:
    kept = visible_patches(torch.tensor(3), 4000, 4)
    assert (kept.diff(dim=1) > 0).all()
    share = torch.bincount(kept.flatten(), minlength=8) / 4000
    # Five standard deviations of a Bernoulli mean.
    assert (share - 0.5).abs().max() < 5 * 0.5 / 4000**0.5
    assert len(kept.unique(dim=0)) == 70
    restored = masked_with(autoencoder(), SEED)(windows(5))
    assert restored.window.shape == (5, 128, 6)
    assert restored.features.shape == (5, 32)
    assert restored.hidden.sum(dim=(1, 2)).tolist() == [4 * 16] * 5


@pytest.mark.parametrize(("masked", "patches"), [(0.6, 4), (0.625, 5), (0.5, 4), (0.875, 7)])
def test_a_share_is_rounded_down_to_patches(masked: float, patches: int) -> None:
    """The paper's 60 % hides 4 of 8, as its authors' code does; 0.625 hides 5."""
    restored = masked_with(autoencoder(masked=masked), SEED)(windows(3))
    assert restored.hidden.sum(dim=(1, 2)).tolist() == [patches * 16] * 3
    if masked == 0.6:
        assert MaskedReconstructionTask().masked == masked


def test_the_mask_is_the_seeds_alone() -> None:
    before = torch.get_rng_state()
    kept = visible_patches(SEED, 64, 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(kept, visible_patches(SEED, 64, 4))
    assert torch.equal(kept[:5], visible_patches(SEED, 5, 4))
    assert not torch.equal(kept, visible_patches(SEED + 1, 64, 4))


def test_each_step_of_training_masks_others() -> None:
    model, x = masked_with(autoencoder(), SEED), windows(20)
    first, second = model(x).hidden, model(x).hidden
    assert not torch.equal(first, second)
    assert int(model.noise_state) == int(SEED) + 2
    assert torch.equal(masked_with(model, SEED)(x[:7]).hidden, first[:7])


def test_in_evaluation_a_window_has_one_mask_in_any_batch() -> None:
    model, x = autoencoder().eval(), windows(150)
    hidden = model(x).hidden
    other = masked_with(autoencoder(), 99).eval()
    assert torch.equal(other(x.flip(0)).hidden.flip(0), hidden)
    assert torch.equal(other(x[3:4]).hidden, hidden[3:4])
    torch.testing.assert_close(model(x).window[:9], model(x[:9]).window)
    assert len(visible_patches_of(x, 4).unique(dim=0)) > 50  # of 70
    stacked = vmap(lambda part: visible_patches_of(part, 4))(x.view(3, 50, 128, 6))
    assert torch.equal(stacked.flatten(0, 1), visible_patches_of(x, 4))


def test_the_window_is_restored_from_the_visible_patches_in_the_order_of_time() -> None:
    """One example after the other, gathered and filled in numpy, with numpy's LayerNorm, dense layer and loss."""
    model, x = masked_with(autoencoder(), SEED, dropout=False), windows(3)
    kept, (features, window, hidden) = visible_patches(SEED, 3, 4).numpy(), model(x)
    head = model.head
    position, token = (t.detach().numpy() for t in (model.encoder.position, head.mask_token))
    for b in range(3):
        seen = model.encoder.embed(x[b : b + 1])[0].detach().numpy()[kept[b]]
        encoded = model.encoder.encode(torch.from_numpy(seen)[None])[0].detach().numpy()
        np.testing.assert_allclose(features[b].detach().numpy(), encoded.mean(0), rtol=1e-10, atol=1e-10)
        filled = token + position
        for place, vector in zip(kept[b], encoded, strict=True):
            filled[place] = vector + position[place]
        tokens = torch.from_numpy(filled)[None]
        for block in head.blocks:
            tokens = block(tokens, None)
        decoded = tokens[0].detach().numpy()
        normal = (decoded - decoded.mean(1, keepdims=True)) / np.sqrt(decoded.var(1, keepdims=True) + 1e-6)
        weight, bias = (t.detach().numpy() for t in (head.restore.weight, head.restore.bias))
        wanted = (weight @ normal.flatten() + bias).reshape(128, 6)
        np.testing.assert_allclose(window[b].detach().numpy(), wanted, rtol=1e-10, atol=1e-10)
        assert [p for p in range(8) if not hidden[b, 16 * p : 16 * p + 16].any()] == kept[b].tolist()


def test_what_is_masked_does_not_reach_the_encoder() -> None:
    model, x = autoencoder(), windows(2)
    restored = masked_with(model, SEED, dropout=False)(x)
    changed = torch.where(restored.hidden > 0, x + 100.0, x)
    assert torch.equal(masked_with(model, SEED, dropout=False)(changed).window, restored.window)


@pytest.mark.parametrize("name", ["hart", "hart_alp"])
def test_padding_adds_nothing(name: str) -> None:
    short, x = masked_with(autoencoder(name), SEED), windows(5)
    padded = autoencoder(name).train()
    padded.load_state_dict(short.state_dict())
    mask = torch.tensor([1.0, 1, 1, 0, 0], dtype=torch.float64)
    losses = [loss_of(padded(x, mask), x, mask), loss_of(short(x[:3]), x[:3])]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0.0)
    for name_, tensor in short.state_dict().items():
        torch.testing.assert_close(padded.state_dict()[name_], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["hart", "hart_alp"])
def test_stacked_steps_equal_single_ones(name: str) -> None:
    model = autoencoder(name).train()
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    stacked = {n: torch.stack([p, p + 0.01 * torch.randn_like(p)]) for n, p in parameters.items()}
    x, seeds = windows(2, 4), torch.tensor([3, 2**40])

    fixed = dict(model.named_buffers())

    def loss(own: dict[str, Tensor], x: Tensor, seed: Tensor) -> Tensor:
        return loss_of(functional_call(model, {**fixed, **own, "noise_state": seed}, (x,)), x)

    gradients, losses = vmap(grad_and_value(loss))(stacked, x, seeds)
    for k in range(2):
        one, value = grad_and_value(loss)({n: p[k] for n, p in stacked.items()}, x[k], seeds[k])
        torch.testing.assert_close(losses[k], value, rtol=1e-10, atol=1e-11)
        for n, gradient in one.items():
            torch.testing.assert_close(gradients[n][k], gradient, rtol=1e-9, atol=1e-10)
            assert gradient.abs().sum() > 0, n


@pytest.mark.parametrize("name", ["hart", "hart_alp"])
def test_the_encoder_starts_a_model_with_other_classes(name: str) -> None:
    pretrained = autoencoder(name).train()
    loss_of(pretrained(windows(4)), windows(4)).backward()
    torch.manual_seed(9)
    model = build(name, classes=8, **(ALP if name == "hart_alp" else SMALL)).double()
    head = {n: t.clone() for n, t in model.head.state_dict().items()}
    model.load_state_dict(encoder_state(pretrained.state_dict(), model))
    encoder = pretrained.encoder.state_dict()
    state = {n: t for n, t in model.state_dict().items() if not n.startswith("head.")}
    assert state.keys() == encoder.keys()
    assert all(torch.equal(t, encoder[n]) for n, t in state.items())
    assert all(torch.equal(t, head[n]) for n, t in model.head.state_dict().items())
    x = windows(4)
    assert torch.equal(model.eval()(x).features, pretrained.encoder.eval()(x).features)


def test_what_does_not_fit_is_refused() -> None:
    other = build("hart", classes=3, **(SMALL | {"mlp": 30}))
    with pytest.raises(OptionError, match=r"blocks\.0\.mlp"):
        encoder_state(autoencoder().state_dict(), other)
    with pytest.raises(OptionError, match="alp"):
        encoder_state(autoencoder("hart_alp").state_dict(), other)
    with pytest.raises(OptionError, match="masked=1"):
        autoencoder(masked=1.0)
    with pytest.raises(OptionError, match=r"HarCnn cannot be the encoder .* expected the model hart or hart_alp"):
        with_decoder(build("har_cnn", classes=3), {})
    assert with_decoder(other, None) is other


@pytest.mark.ci
def test_training_restores_what_was_masked() -> None:
    """The mean of the visible samples explains nothing of a sine: an untrained model is at its variance, one half."""
    model = autoencoder(kernels=[3], dropout=0.0).float()
    x, unseen = waves(256, 1), waves(64, 2)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def unseen_loss() -> float:
        with torch.no_grad():
            return loss_of(model.eval()(unseen), unseen).item()

    before = unseen_loss()
    for step in range(60):
        rows = slice(32 * (step % 8), 32 * (step % 8) + 32)
        loss = loss_of(masked_with(model, 1000 + step)(x[rows]), x[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert 0.4 < before < 1.0
    assert unseen_loss() < 0.5 * before
