"""The features of raw windows against a float64 numpy reference, and what a person could expect of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from export.gates import generated_windows
from export.onnx_export import export_onnx
from export.runtime import ModelMetadata, Session
from gaitway.input_spec import InputSpec
from models import OptionError, build
from models.har_features import FEATURES, HarFeatures
from models.registry import new_plan_options
from tests.models.har_reference import reference


def turned(x: np.ndarray, seed: int = 0) -> np.ndarray:
    """Windows as phones have them that lie otherwise, each in its own way."""
    draw = np.random.default_rng(seed)
    turns = np.stack([np.linalg.qr(draw.normal(size=(3, 3)))[0] for _ in x])
    turns *= np.linalg.det(turns)[:, None, None]  # a rotation, and no mirror
    return np.concatenate([np.einsum("nij,ntj->nti", turns, x[..., k : k + 3]) for k in (0, 3)], 2).astype(np.float32)


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    return generated_windows(64, seed=3)


def test_the_features_are_those_of_numpy_in_float64(windows: np.ndarray) -> None:
    found = HarFeatures(2).raw_features(torch.from_numpy(windows)).numpy()
    assert found.shape == (64, FEATURES)
    np.testing.assert_allclose(found, reference(windows), atol=2e-5)


def test_a_phone_that_lies_still_has_finite_features_within_their_bounds() -> None:
    still = np.zeros((3, 128, 6), np.float32)
    still[1:, :, 2] = 9.80665
    still[2, :, 0] = 1e30
    module = HarFeatures(2)
    output = module(torch.from_numpy(still))
    assert torch.isfinite(output.features[:2]).all()
    assert float(output.features[:2].abs().max()) <= 4
    assert module.feature_dim == output.features.shape[1] == 783


def test_the_columns_without_axes_are_the_same_however_the_phone_lies(windows: np.ndarray) -> None:
    module = build("har_features", classes=2)
    free = list(module.orientation_free_columns)
    assert free == [*range(90), *range(183, 483)]
    assert module.orientation_free.nonzero().flatten().tolist() == free
    rest = [column for column in range(module.feature_dim) if column not in set(free)]
    straight, otherwise = (module(torch.from_numpy(x)).features.numpy() for x in (windows, turned(windows)))
    np.testing.assert_allclose(otherwise[:, free], straight[:, free], atol=2e-3)
    assert np.abs(otherwise - straight)[:, rest].mean(0).min() > 0.02  # every other one says something of the axes


def test_features_of_one_window_do_not_depend_on_the_others(windows: np.ndarray) -> None:
    module = HarFeatures(2)
    together = module(torch.from_numpy(windows)).features
    alone = torch.cat([module(torch.from_numpy(windows[i : i + 1])).features for i in range(8)])
    torch.testing.assert_close(together[:8], alone, atol=1e-5, rtol=0)


def test_the_seed_alone_draws_the_cosines() -> None:
    one, same, other = (build("har_features", classes=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.projection, same.projection)
    assert not torch.equal(one.projection, other.projection)
    with pytest.raises(OptionError, match="cosines=-1"):
        build("har_features", classes=2, cosines=-1)
    with pytest.raises(OptionError, match="seed=-1"):
        build("har_features", classes=2, seed=-1)


def test_a_new_plan_has_minirocket_and_an_old_one_keeps_its_cosines() -> None:
    old, new = (build("har_features", classes=2, **options) for options in ({}, new_plan_options("har_features", {})))
    assert old.options == {"features": 0, "cosines": 600, "seed": 0}
    assert new.options == {"features": 600, "cosines": 0, "seed": 0}
    assert old.feature_dim == new.feature_dim == 783  # what a device sends is as long as before
    assert new.orientation_free_columns == old.orientation_free_columns
    assert new_plan_options("har_features", {"cosines": 17}) == {"cosines": 17}
    assert build("har_features", classes=2, features=2000).feature_dim == 2183
    with pytest.raises(OptionError, match="expected one of the two"):
        build("har_features", classes=2, features=600, cosines=600)
    for strange in (-2, 7, 2002):
        with pytest.raises(OptionError, match=f"features={strange}: expected an even number"):
            build("har_features", classes=2, features=strange)


def test_the_columns_of_the_acceleration_are_the_same_without_a_gyroscope(windows: np.ndarray) -> None:
    module = build("har_features", classes=2, features=600)
    otherwise = windows.copy()
    otherwise[..., 3:] = np.random.default_rng(0).normal(size=(64, 128, 3))
    has = module.acceleration.bool()
    assert has.nonzero().flatten().tolist() == list(module.acceleration_columns)
    before, after = (module(torch.from_numpy(x)).features for x in (windows, otherwise))
    assert torch.equal(before[:, has], after[:, has])
    assert (before != after)[:, ~has].any(0).all()
    assert set(module.gravity_columns) < set(module.acceleration_columns)


@pytest.mark.ci  # edge_agent/training/test_heads.py exports a smaller one and compares its answers with torch's
def test_it_is_exported_and_answers_as_torch_does(windows: np.ndarray, tmp_path) -> None:
    torch.manual_seed(0)
    module = build("har_features", classes=3)
    metadata = ModelMetadata(labels=("a", "b", "c"), input=InputSpec.windows((0.0,) * 6, (1.0,) * 6))
    report = export_onnx(
        module, tmp_path / "model.onnx", metadata=metadata, examples=generated_windows(256), int8=False
    )
    assert report.parity.max_logit_delta <= 1e-4
    with torch.no_grad():
        expected = module(torch.from_numpy(windows)).logits.numpy()
    np.testing.assert_allclose(Session.load(tmp_path / "model.onnx").predict(windows).logits, expected, atol=1e-4)


def test_a_network_made_under_fake_tensors_leaves_none_to_the_next() -> None:
    with FakeTensorMode():
        build("har_features", classes=3, cosines=19)
    assert type(build("har_features", classes=3, cosines=19).projection) is torch.Tensor
