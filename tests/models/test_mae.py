"""Masked autoencoding: what is masked, the loss against numpy, padding, stacked clients, and what is handed on."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from models import OptionError, build
from models.hart import Hart
from models.mae import MaskedAutoencoder, Reconstruction, pretrained_state, reconstruction_loss, visible_patches

SMALL: dict[str, Any] = {"blocks": 2, "feature_dim": 32, "mlp": 24, "head_width": 20}
ALP: dict[str, Any] = SMALL | {"prototypes": [20, 9], "alp": {"prototypes": "local", "gamma": 0.5}}
SEED = torch.tensor(7)


def autoencoder(name: str = "hart", **options: Any) -> MaskedAutoencoder:
    torch.manual_seed(1)
    encoder = build(name, classes=3, **(ALP if name == "hart_alp" else SMALL))
    assert isinstance(encoder, Hart)
    return MaskedAutoencoder(encoder, **({"mlp": 24} | options)).double()


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
    restored = autoencoder()(windows(5), SEED)
    assert restored.window.shape == (5, 128, 6)
    assert restored.masked.sum(dim=1).tolist() == [4] * 5


def test_the_mask_is_the_seeds_alone() -> None:
    before = torch.get_rng_state()
    kept = visible_patches(SEED, 64, 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(kept, visible_patches(SEED, 64, 4))
    assert torch.equal(kept[:5], visible_patches(SEED, 5, 4))
    assert not torch.equal(kept, visible_patches(SEED + 1, 64, 4))


def test_the_loss_is_numpys_on_the_masked_patches() -> None:
    x, window = windows(3).numpy(), windows(3).numpy()
    masked, mask = np.zeros((3, 8), dtype=bool), np.array([1.0, 1.0, 0.0])
    masked[0, [1, 2]] = masked[1, [0, 7]] = masked[2, [3, 4]] = True
    squares = [
        (window[b, 16 * p + t, c] - x[b, 16 * p + t, c]) ** 2
        for b, p in ((0, 1), (0, 2), (1, 0), (1, 7))
        for t in range(16)
        for c in range(6)
    ]
    restored = Reconstruction(torch.from_numpy(window), torch.from_numpy(masked))
    found = reconstruction_loss(restored, torch.from_numpy(x), torch.from_numpy(mask))
    assert found.item() == pytest.approx(np.mean(squares), rel=1e-12)


def test_the_window_is_restored_from_the_visible_patches_in_the_order_of_time() -> None:
    """One example after the other, gathered and filled in numpy, with numpy's LayerNorm, dense layer and loss."""
    model, x = autoencoder().eval(), windows(3)
    kept, (window, masked) = visible_patches(SEED, 3, 4).numpy(), model(x, SEED)
    position, token = (t.detach().numpy() for t in (model.encoder.position, model.mask_token))
    errors = []
    for b in range(3):
        seen = model.encoder.embed(x[b : b + 1])[0].detach().numpy()[kept[b]]
        encoded = model.encoder.encode(torch.from_numpy(seen)[None])[0].detach().numpy()
        filled = token + position
        for place, vector in zip(kept[b], encoded, strict=True):
            filled[place] = vector + position[place]
        tokens = torch.from_numpy(filled)[None]
        for block in model.decoder:
            tokens = block(tokens, None)
        decoded = tokens[0].detach().numpy()
        normal = (decoded - decoded.mean(1, keepdims=True)) / np.sqrt(decoded.var(1, keepdims=True) + 1e-6)
        weight, bias = (t.detach().numpy() for t in (model.restore.weight, model.restore.bias))
        wanted = (weight @ normal.flatten() + bias).reshape(128, 6)
        np.testing.assert_allclose(window[b].detach().numpy(), wanted, rtol=1e-10, atol=1e-10)
        for p in set(range(8)) - set(kept[b]):
            assert masked[b, p]
            errors.append(np.mean((wanted - x[b].numpy())[16 * p : 16 * p + 16] ** 2))
    loss = reconstruction_loss(model(x, SEED), x)
    assert len(errors) == 12
    assert loss.item() == pytest.approx(np.mean(errors), rel=1e-10)


def test_what_is_masked_does_not_reach_the_encoder() -> None:
    model, x = autoencoder().eval(), windows(2)
    restored = model(x, SEED)
    hidden = restored.masked[:, :, None, None].expand(2, 8, 16, 6).reshape(x.shape)
    changed = torch.where(hidden, x + 100.0, x)
    assert torch.equal(model(changed, SEED).window, restored.window)


@pytest.mark.parametrize("name", ["hart", "hart_alp"])
def test_padding_adds_nothing(name: str) -> None:
    short, x = autoencoder(name).train(), windows(5)
    padded = autoencoder(name).train()
    padded.load_state_dict(short.state_dict())
    mask = torch.tensor([1.0, 1, 1, 0, 0], dtype=torch.float64)
    losses = [reconstruction_loss(padded(x, SEED, mask), x, mask), reconstruction_loss(short(x[:3], SEED), x[:3])]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0.0)
    for name_, tensor in short.state_dict().items():
        torch.testing.assert_close(padded.state_dict()[name_], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["hart", "hart_alp"])
def test_stacked_steps_equal_single_ones(name: str) -> None:
    model = autoencoder(name).train()
    parameters = {n: p.detach() for n, p in model.named_parameters() if ".head." not in n}
    head = {n: p.detach() for n, p in model.named_parameters() if ".head." in n}
    stacked = {n: torch.stack([p, p + 0.01 * torch.randn_like(p)]) for n, p in parameters.items()}
    x, seeds = windows(2, 4), torch.tensor([3, 2**40])

    fixed = head | dict(model.named_buffers())

    def loss(own: dict[str, Tensor], x: Tensor, seed: Tensor) -> Tensor:
        return reconstruction_loss(functional_call(model, {**fixed, **own}, (x, seed)), x)

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
    reconstruction_loss(pretrained(windows(4), SEED), windows(4)).backward()
    torch.manual_seed(9)
    model = build(name, classes=8, **(ALP if name == "hart_alp" else SMALL)).double()
    head = {n: t.clone() for n, t in model.head.state_dict().items()}
    assert isinstance(model, Hart)
    model.load_state_dict(pretrained_state(pretrained, model))
    encoder = pretrained.encoder.state_dict()
    state = {n: t for n, t in model.state_dict().items() if not n.startswith("head.")}
    assert all(torch.equal(t, encoder[n.replace("global_", "local_")]) for n, t in state.items())
    assert all(torch.equal(t, head[n]) for n, t in model.head.state_dict().items())
    x = windows(4)
    assert torch.equal(model.eval()(x).features, pretrained.encoder.eval()(x).features)


def test_another_size_is_refused() -> None:
    other = build("hart", classes=3, **(SMALL | {"mlp": 30}))
    assert isinstance(other, Hart)
    with pytest.raises(OptionError, match=r"blocks\.0\.mlp"):
        pretrained_state(autoencoder(), other)
    with pytest.raises(OptionError, match="alp"):
        pretrained_state(autoencoder("hart_alp"), autoencoder().encoder)
    with pytest.raises(OptionError, match="masked=1"):
        autoencoder(masked=1.0)


def test_training_restores_what_was_masked() -> None:
    """The mean of the visible samples explains nothing of a sine: an untrained model is at its variance, one half."""
    model = autoencoder(kernels=[3], dropout=0.0).float()
    x, unseen = waves(256, 1), waves(64, 2)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def unseen_loss() -> float:
        with torch.no_grad():
            return reconstruction_loss(model.eval()(unseen, torch.tensor(5)), unseen).item()

    before = unseen_loss()
    for step in range(60):
        rows = slice(32 * (step % 8), 32 * (step % 8) + 32)
        loss = reconstruction_loss(model.train()(x[rows], torch.tensor(1000 + step)), x[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert 0.4 < before < 1.0
    assert unseen_loss() < 0.5 * before
