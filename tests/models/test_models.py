"""What every model of the table must do."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from models import MODELS, ModelError, OptionError, UnknownModelError, build

# Small enough to run in float64 under vmap in a moment; dropout on, for its masks must agree too.
SMALL: dict[str, dict[str, Any]] = {
    "hart": {"blocks": 2, "feature_dim": 32, "mlp": 24, "head_width": 20},
    "hart_alp": {"blocks": 2, "feature_dim": 32, "mlp": 24, "head_width": 20, "prototypes": [50, 9]},
    "cnn": {"channels": [8, 16], "feature_dim": 24, "hidden": 10},
    "cnn_alp": {"channels": [8, 16], "feature_dim": 24, "hidden": 10, "prototypes": [13], "alp": {"gamma": 0.5}},
}
pytestmark = pytest.mark.parametrize("name", MODELS)


def small(name: str) -> nn.Module:
    torch.manual_seed(3)
    return build(name, classes=5, **SMALL[name]).double()


def step(model: nn.Module) -> Any:
    """Return the gradient and the moved buffers of one training step as a pure function."""

    def loss(params: Any, buffers: Any, x: Tensor, y: Tensor, mask: Tensor) -> Any:
        moved: dict[str, Tensor] = {}
        hook = model.register_forward_hook(lambda module, *_: moved.update(module.named_buffers()))
        out = functional_call(model, (params, buffers), (x, mask))
        hook.remove()
        each = nn.functional.cross_entropy(out.logits, y, reduction="none")
        return (each * mask).sum() / mask.sum(), (moved, out.features)

    return grad(loss, has_aux=True)


def trees(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return {n: p.detach() for n, p in model.named_parameters()}, dict(model.named_buffers())


def assert_trees_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for key in left:
        torch.testing.assert_close(left[key], right[key], rtol=1e-10, atol=1e-11, msg=lambda m, k=key: f"{k}: {m}")


def test_default_shapes_and_feature_width(name: str) -> None:
    model = build(name, classes=6).eval()
    features, logits = model(torch.randn(3, 128, 6))
    assert features.shape == (3, 192)
    assert model.feature_dim == 192
    assert logits.shape == (3, 6)


def test_options_rebuild_the_model_through_json(name: str) -> None:
    model = small(name)
    again = build(name, classes=5, **json.loads(json.dumps(model.options))).double()
    again.load_state_dict(model.state_dict())
    x = torch.randn(4, 128, 6, dtype=torch.float64)
    assert torch.equal(again.eval()(x).logits, model.eval()(x).logits)
    assert again.options == model.options


def test_the_head_maps_features_to_logits_and_owns_its_names(name: str) -> None:
    model = small(name).eval()
    out = model(torch.randn(4, 128, 6, dtype=torch.float64))
    assert torch.equal(model.head(out.features), out.logits)
    owned = {n for n, _ in model.named_parameters() if n.startswith("head.")}
    assert len(owned) == 4


def test_stacked_steps_equal_single_ones(name: str) -> None:
    model, clients = small(name).train(), 3
    params, buffers = trees(model)
    stacked_params = {n: p + 0.01 * torch.randn(clients, *p.shape, dtype=p.dtype) for n, p in params.items()}
    stacked_buffers = {n: torch.stack([b + k for k in range(clients)]) for n, b in buffers.items()}
    x, y = torch.randn(clients, 6, 128, 6, dtype=torch.float64), torch.randint(5, (clients, 6))
    mask = torch.ones(clients, 6, dtype=torch.float64)
    mask[2, 4:] = 0
    gradients, (moved, features) = vmap(step(model))(stacked_params, stacked_buffers, x, y, mask)
    for k in range(clients):
        own = [{n: t[k] for n, t in tree.items()} for tree in (stacked_params, stacked_buffers)]
        one, (one_moved, one_features) = step(model)(*own, x[k], y[k], mask[k])
        assert_trees_equal({n: g[k] for n, g in gradients.items()}, one)
        assert_trees_equal({n: b[k] for n, b in moved.items()}, one_moved)
        torch.testing.assert_close(features[k], one_features, rtol=1e-10, atol=1e-11)


def test_a_padded_batch_trains_as_the_short_one(name: str) -> None:
    model = small(name).train()
    x, y = torch.randn(7, 128, 6, dtype=torch.float64), torch.randint(5, (7,))
    mask = torch.tensor([1.0, 1, 1, 1, 0, 0, 0], dtype=torch.float64)
    padded, (padded_moved, _) = step(model)(*trees(model), x, y, mask)
    short, (short_moved, _) = step(model)(*trees(model), x[:4], y[:4], mask[:4])
    assert_trees_equal(padded, short)
    assert_trees_equal(padded_moved, short_moved)


def test_training_moves_the_noise_and_the_local_prototypes_only(name: str) -> None:
    model = small(name).train()
    _, buffers = trees(model)
    kept = {n: b.clone() for n, b in buffers.items()}
    x, y = torch.randn(6, 128, 6, dtype=torch.float64), torch.randint(5, (6,))
    _, (moved, _) = step(model)(*trees(model), x, y, torch.ones(6, dtype=torch.float64))
    changed = {n for n in kept if not torch.equal(moved[n], kept[n])}
    assert_trees_equal(buffers, kept)
    assert changed
    assert all(n.endswith(("noise_state", "local_prototypes")) for n in changed)
    assert any(n.endswith("local_prototypes") for n in changed) == name.endswith("_alp")
    assert {n for n in kept if n.endswith("local_prototypes")} <= changed


def test_evaluation_is_deterministic_and_changes_nothing(name: str) -> None:
    model = small(name).eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    x = torch.randn(6, 128, 6, dtype=torch.float64)
    assert torch.equal(model(x).logits, model(x).logits)
    assert_trees_equal(dict(model.state_dict()), before)


def test_every_parameter_learns(name: str) -> None:
    model = build(name, classes=5, **(SMALL[name] | {"dropout": 0.0})).double().train()
    x, y = torch.randn(6, 128, 6, dtype=torch.float64), torch.randint(5, (6,))
    gradients, _ = step(model)(*trees(model), x, y, torch.ones(6, dtype=torch.float64))
    assert [n for n, g in gradients.items() if not g.abs().sum() > 0] == []


def test_unknown_options_name_the_nearest(name: str) -> None:
    with pytest.raises(OptionError, match="nearest: 'dropout'"):
        build(name, classes=5, droput=0.1)


def test_unknown_names_and_classes(name: str) -> None:
    with pytest.raises(UnknownModelError, match=f"nearest: '{name}'"):
        build(name + "x", classes=5)
    with pytest.raises(OptionError, match="classes=1"):
        build(name, classes=1)
    assert issubclass(UnknownModelError, ModelError)
