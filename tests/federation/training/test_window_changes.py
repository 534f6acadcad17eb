"""Changed windows: rotations are rotations, uniform, in physical units; a lost sensor reads nothing; equal bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from federation.errors import SettingsError
from federation.methods import METHODS
from federation.plan import Augmentation, Plan, TrainingConfig, live_incompatibility
from federation.records import Examples
from federation.training.client_round import train_one, train_stacked
from federation.training.forward import initial_client, network
from federation.training.local_round import Setup
from federation.training.schedule import WindowCopies, in_order, with_copies
from federation.training.window_changes import (
    ChannelScale,
    changed_windows,
    check_windows,
    rotated,
    rotations,
    window_copies,
    without_gyroscope,
)
from models import build


def draws(count: int, columns: int = 3) -> np.ndarray:
    return np.random.default_rng(0).random((count, columns)).astype(np.float32)


def test_rotations_keep_lengths_and_hands_and_favour_no_direction() -> None:
    found = rotations(draws(20_000)).astype(np.float64)
    assert np.abs(found @ found.transpose(0, 2, 1) - np.eye(3)).max() < 1e-6
    assert np.abs(np.linalg.det(found) - 1).max() < 1e-6
    assert np.abs(found.mean(0)).max() < 0.02  # uniform: no axis is favoured
    assert np.abs((found**2).mean(0) - 1 / 3).max() < 0.02


def test_small_rotations_are_about_any_axis_by_no_more_than_the_angle() -> None:
    found = rotations(draws(20_000), 30).astype(np.float64)
    assert np.abs(found @ found.transpose(0, 2, 1) - np.eye(3)).max() < 1e-6
    angles = np.rad2deg(np.arccos((np.trace(found, axis1=1, axis2=2) - 1).clip(-2, 2) / 2))
    assert angles.max() < 30.1
    assert angles.mean() == pytest.approx(15, abs=0.3)
    axes = np.stack([found[:, 2, 1] - found[:, 1, 2], found[:, 0, 2] - found[:, 2, 0], found[:, 1, 0] - found[:, 0, 1]])
    directions = axes / np.linalg.norm(axes, axis=0)
    assert np.abs(directions.mean(1)).max() < 0.02
    assert np.abs((directions**2).mean(1) - 1 / 3).max() < 0.02


def test_a_window_is_turned_in_the_units_in_which_it_was_measured() -> None:
    """Against numpy: scaled back, both sensors by one matrix, scaled again."""
    raw = np.random.default_rng(1).normal(size=(4, 16, 6)).astype(np.float32)
    scale = ChannelScale((0.1, 9.0, -2.0, 0.0, 0.3, 0.1), (1.0, 2.0, 3.0, 0.5, 0.7, 0.2))
    mean, std = (np.array(each, np.float32) for each in scale)
    matrices = rotations(draws(4))
    wanted = np.concatenate([np.einsum("nij,ntj->nti", matrices, raw[..., at : at + 3]) for at in (0, 3)], 2)
    found = rotated(torch.from_numpy((raw - mean) / std), torch.from_numpy(matrices), scale)
    assert np.abs(found.numpy() - (wanted - mean) / std).max() < 1e-4
    assert np.abs(rotated(torch.from_numpy(raw), torch.from_numpy(matrices)).numpy() - wanted).max() < 1e-5


def test_stacked_windows_have_the_bits_of_single_ones_and_a_share_stays_as_it_was() -> None:
    x, drawn = torch.randn(3, 40, 128, 6), draws(120, 7).reshape(3, 40, 7)
    half = Augmentation(rotation=0.5)
    together = changed_windows(half, drawn, x)
    alone = torch.stack([changed_windows(half, drawn[k, :, :], x[k]) for k in range(3)])
    one = changed_windows(half, drawn[1, 7:8], x[1, 7:8])
    assert torch.equal(together, alone)
    assert torch.equal(together[1, 7:8], one)
    kept = torch.from_numpy(drawn[..., 0] >= 0.5)
    assert torch.equal(together[kept], x[kept])
    assert not torch.isclose(together[~kept], x[~kept]).all(dim=(1, 2)).any()


def test_copies_of_a_window_do_not_depend_on_how_many_others_a_client_has() -> None:
    few, many = (with_copies(in_order(count, 8), WindowCopies(2), 7, "ann") for count in (5, 30))
    assert few.draws is not None
    assert many.draws is not None
    assert (few.draws[1:, 0, :5] == many.draws[1:, 0, :5]).all()
    assert (few.draws[0, ..., 0] == 1).all()  # the window as it was measured
    other = with_copies(in_order(5, 8), WindowCopies(2), 7, "bob").draws
    assert other is not None
    assert (other[1] != few.draws[1]).any()


SCALE = ChannelScale((0.1, 9.0, -2.0, 0.0, 0.3, 0.1), (1.0, 2.0, 3.0, 0.5, 0.7, 0.2))


@pytest.mark.parametrize("scale", [None, SCALE])
def test_a_window_that_loses_its_gyroscope_is_that_of_a_device_without_one(scale: ChannelScale | None) -> None:
    raw, drawn = np.random.default_rng(1).normal(size=(40, 16, 6)).astype(np.float32), draws(40, 7)
    mean, std = (np.array(each, np.float32) for each in (scale or ((0.0,) * 6, (1.0,) * 6)))
    wanted = raw.copy()
    wanted[drawn[:, 4] < 0.3, :, 3:] = 0
    found = changed_windows(Augmentation(sensor_loss=0.3), drawn, torch.from_numpy((raw - mean) / std), scale)
    assert np.abs(found.numpy() - (wanted - mean) / std).max() < 1e-5
    assert 0 < (drawn[:, 4] < 0.3).sum() < 40


def test_the_copy_with_a_lost_sensor_comes_last_and_leaves_the_turned_ones_as_they_are() -> None:
    turned, both = (with_copies(in_order(5, 8), WindowCopies(2, sensor_loss=lost), 7, "ann") for lost in (False, True))
    only = with_copies(in_order(5, 8), WindowCopies(sensor_loss=True), 7, "ann")
    assert turned.draws is not None
    assert both.draws is not None
    assert only.draws is not None
    assert (both.draws[:3] == turned.draws).all()
    assert (both.draws[3] == only.draws[1]).all()
    change, x = Augmentation(rotation=1, sensor_loss=1), torch.randn(8, 128, 6)
    kept, lost = (changed_windows(change, only.draws[epoch, 0], x) for epoch in (0, 1))
    assert torch.equal(kept, x)
    assert torch.equal(lost, without_gyroscope(x))


@pytest.mark.parametrize("degrees", [180.0, 40.0])
def test_copies_that_are_made_without_torch_are_those_of_a_local_round(degrees: float) -> None:
    x = np.random.default_rng(1).normal(size=(13, 128, 6)).astype(np.float32)
    order = with_copies(in_order(13, 8), WindowCopies(2, sensor_loss=True), 7, "ann")
    assert order.draws is not None
    change = Augmentation(rotation=1, degrees=degrees, sensor_loss=1)
    found = list(window_copies(x, 7, "ann", WindowCopies(2, degrees, sensor_loss=True)))
    assert len(found) == 3
    for copy, draws_of_copy in zip(found, order.draws[1:], strict=True):
        drawn = draws_of_copy.reshape(-1, draws_of_copy.shape[-1])[:13]
        assert np.array_equal(copy, changed_windows(change, drawn, torch.from_numpy(x)).numpy())
        assert not np.isclose(copy, x).all(axis=(1, 2)).any()
    assert not list(window_copies(x, 7, "ann", WindowCopies()))
    assert not list(window_copies(x[:0], 7, "ann", WindowCopies(2, sensor_loss=True)))


def test_images_are_not_turned_so() -> None:
    with pytest.raises(SettingsError, match="windows of motion sensors"):
        check_windows(torch.zeros(2, 3, 8, 8))
    assert not Augmentation.model_validate("rotation=1,sensor_loss=0.1").is_of_images
    assert Augmentation.model_validate("sensor_loss=0.1").is_of_windows
    assert str(Augmentation.model_validate("flip=0.5,rotation=0.5")) == "flip=0.5,rotation=0.5"


def test_clients_that_train_together_turn_the_windows_that_they_turn_alone() -> None:
    torch.manual_seed(0)
    module = build("har_cnn", classes=2, channels=[8, 8], feature_dim=16, hidden=8)
    change = Augmentation(rotation=0.7, degrees=60, sensor_loss=0.3)
    training = TrainingConfig(classes=2, feature_dim=16, batch_size=8, optimizer="sgd", lr=0.1, augmentation=change)
    setup = Setup(METHODS["fedavg"](), training, network(module), channels=ChannelScale((0.5,) * 6, (2.0,) * 6))
    client = initial_client(module)
    broadcast = setup.method.server_init(client.params, client.buffers, training)
    mine = {
        name: Examples(torch.randn(count, 128, 6), torch.arange(count) % 2) for name, count in (("a", 20), ("b", 9))
    }
    known = {"client_ids": list(mine), "round_number": 1}
    together = train_stacked(setup, [client] * 2, [broadcast] * 2, list(mine.values()), **known)
    unturned = replace(setup, training=training.model_copy(update={"augmentation": Augmentation()}))
    for name, found in zip(mine, together, strict=True):
        alone, plain = (
            train_one(each, client, broadcast, mine[name], client_id=name, round_number=1) for each in (setup, unturned)
        )
        for key, value in alone.client.params.items():
            torch.testing.assert_close(found.client.params[key], value, atol=1e-4, rtol=1e-3)
        assert any(
            (plain.client.params[key] - alone.client.params[key]).abs().max() > 1e-4 for key in plain.client.params
        )


@pytest.mark.parametrize("changed", [{"augmentation": "rotation=1"}, {"augmentation": "sensor_loss=1"}, {}])
def test_units_of_each_clients_own_are_not_changed(changed: dict[str, str]) -> None:
    training = {"classes": 2, **changed}
    plan = {"labels": ["a", "b"], "model": {"name": "har_cnn"}, "training": training}
    method = {"name": "fedavg"} if changed else {"name": "analytic", "sensor_loss": True}
    own, shared = (
        Plan.model_validate({**plan, "method": method, "data": {"normalization": kind}}) for kind in ("client", "none")
    )
    assert "gives each client its own units" in (live_incompatibility(own) or "")
    assert live_incompatibility(shared) is None
