"""What every model of the table must do."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gaitway.tasks import TargetKind
from models import MODELS, Model, ModelError, OptionError, UnknownModelError, build
from models.image.segmentation import Segmenter, resized
from models.registry import alp_models, model_options
from tests.models.small_models import CASES, small

# What deeplab_v3plus tests of the same layers; a second each.
SLOWER = ("mobilenet_v2", "deeplab_v3plus, frozen")
EACH_CASE = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.ci] if case in SLOWER else []) for case in CASES]
)
EACH_NAME = pytest.mark.parametrize("name", MODELS)
# What enters the head of a network as its paper has it.
FEATURE_DIMS = {
    "hart": 192, "hart_alp": 192, "har_cnn": 192, "har_cnn_alp": 192, "vit_tiny": 192, "vit_tiny_alp": 192,
    "dense": 128, "mnist_cnn": 50, "femnist_cnn": 50, "margin_cnn": 64 * 7 * 7, "celeba_cnn": 32 * 5 * 5,
    "public_cnn": 64 * 14 * 14, "resnet18": 512, "segmenter_small": 48, "mobilenet_v2": 1280,
    "deeplab_v3plus": 256,
}  # fmt: skip


def examples(model: Model, *sizes: int) -> Tensor:
    return torch.randn(*sizes, *model.input_shape, dtype=next(model.parameters()).dtype)


def targets(model: Model, *sizes: int) -> Tensor:
    """Return a class of each example, or of each of its pixels."""
    return torch.randint(5, (*sizes, *(model.input_shape[1:] if isinstance(model, Segmenter) else ())))


def step(model: nn.Module) -> Any:
    """Return the gradient and the moved buffers of one training step as a pure function."""

    def loss(params: Any, buffers: Any, x: Tensor, y: Tensor, mask: Tensor) -> Any:
        moved: dict[str, Tensor] = {}
        hook = model.register_forward_hook(lambda module, *_: moved.update(module.named_buffers()))
        out = functional_call(model, (params, buffers), (x, mask))
        hook.remove()
        each = nn.functional.cross_entropy(out.logits, y, reduction="none").reshape(len(y), -1).mean(1)
        return (each * mask).sum() / mask.sum(), (moved, out.features)

    return grad(loss, has_aux=True)


def trees(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return {n: p.detach() for n, p in model.named_parameters()}, dict(model.named_buffers())


def assert_trees_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for key in left:
        torch.testing.assert_close(left[key], right[key], rtol=1e-10, atol=1e-11, msg=lambda m, k=key: f"{k}: {m}")


@EACH_NAME
def test_default_shapes_and_feature_width(name: str) -> None:
    with torch.device("cpu" if name in alp_models() else "meta"):  # ALP's forward is of real devices
        model = build(name, classes=6).eval()
        features, logits = model(torch.zeros(3, *model.input_shape))
    assert model.feature_dim == FEATURE_DIMS.get(name, features.shape[1])
    assert features.shape[:2] == (3, model.feature_dim)
    assert logits.shape == (3, 6, *(model.input_shape[1:] if isinstance(model, Segmenter) else ()))
    assert features.dim() == logits.dim()


@EACH_CASE
def test_options_rebuild_the_model_through_json(case: str) -> None:
    model = small(case)
    again = build(CASES[case][0], classes=5, **json.loads(json.dumps(model.options))).double()
    again.load_state_dict(model.state_dict())
    x = examples(model, 4)
    assert torch.equal(again.eval()(x).logits, model.eval()(x).logits)
    assert again.options == model.options
    assert model.options.keys() == model_options(CASES[case][0]).keys()


@pytest.mark.parametrize("case", [case for case in CASES if "features_at" not in CASES[case][1]])
def test_the_head_maps_features_to_logits_and_owns_its_names(case: str) -> None:
    model = small(case).eval()
    out = model(examples(model, 4))
    logits = model.head(out.features)
    assert torch.equal(resized(logits, out.logits) if isinstance(model, Segmenter) else logits, out.logits)
    owned = {n.removeprefix("head.") for n, _ in model.named_parameters() if n.startswith("head.")}
    assert owned == {n for n, _ in model.head.named_parameters()}


@EACH_CASE
def test_stacked_steps_equal_single_ones(case: str) -> None:
    model, clients = small(case).train(), 3
    params, buffers = trees(model)
    stacked_params = {n: p + 0.01 * torch.randn(clients, *p.shape, dtype=p.dtype) for n, p in params.items()}
    stacked_buffers = {n: torch.stack([b + k for k in range(clients)]) for n, b in buffers.items()}
    x, y = examples(model, clients, 6), targets(model, clients, 6)
    mask = torch.ones(clients, 6, dtype=torch.float64)
    mask[2, 4:] = 0
    gradients, (moved, features) = vmap(step(model))(stacked_params, stacked_buffers, x, y, mask)
    for k in range(clients):
        own = [{n: t[k] for n, t in tree.items()} for tree in (stacked_params, stacked_buffers)]
        one, (one_moved, one_features) = step(model)(*own, x[k], y[k], mask[k])
        assert_trees_equal({n: g[k] for n, g in gradients.items()}, one)
        assert_trees_equal({n: b[k] for n, b in moved.items()}, one_moved)
        torch.testing.assert_close(features[k], one_features, rtol=1e-10, atol=1e-11)


@EACH_CASE
def test_a_padded_batch_trains_as_the_short_one(case: str) -> None:
    model = small(case).train()
    x, y = examples(model, 7), targets(model, 7)
    mask = torch.tensor([1.0, 1, 1, 1, 0, 0, 0], dtype=torch.float64)
    padded, (padded_moved, _) = step(model)(*trees(model), x, y, mask)
    short, (short_moved, _) = step(model)(*trees(model), x[:4], y[:4], mask[:4])
    assert_trees_equal(padded, short)
    assert_trees_equal(padded_moved, short_moved)


@EACH_CASE
def test_training_moves_the_noise_and_the_local_prototypes_only(case: str) -> None:
    model = small(case).train()
    _, buffers = trees(model)
    kept = {n: b.clone() for n, b in buffers.items()}
    x, y = examples(model, 6), targets(model, 6)
    _, (moved, _) = step(model)(*trees(model), x, y, torch.ones(6, dtype=torch.float64))
    changed = {n for n in kept if not torch.equal(moved[n], kept[n])}
    assert_trees_equal(buffers, kept)
    assert all(n.endswith(("noise_state", "local_prototypes")) for n in changed)
    assert any(n.endswith("local_prototypes") for n in changed) == CASES[case][0].endswith("_alp")
    assert any(n.endswith("noise_state") for n in changed) == (model.options.get("dropout", 0.0) > 0)
    assert {n for n in kept if n.endswith("local_prototypes")} <= changed


@EACH_CASE
def test_evaluation_is_deterministic_and_changes_nothing(case: str) -> None:
    model = small(case).eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    x = examples(model, 6)
    assert torch.equal(model(x).logits, model(x).logits)
    assert_trees_equal(dict(model.state_dict()), before)


@EACH_CASE
def test_every_parameter_learns(case: str) -> None:
    known = model_options(CASES[case][0])
    model = small(case, **{name: 0.0 for name in ("dropout", "map_dropout") if name in known}).train()
    x, y = examples(model, 6), targets(model, 6)
    gradients, _ = step(model)(*trees(model), x, y, torch.ones(6, dtype=torch.float64))
    assert [n for n, g in gradients.items() if not g.abs().sum() > 0] == []


@EACH_NAME
def test_unknown_options_name_the_nearest(name: str) -> None:
    option = max(model_options(name), key=len, default="")
    with pytest.raises(OptionError, match=f"did you mean '{option}'" if option else "There are none"):
        build(name, classes=5, **{option + "s": 1})


@EACH_NAME
def test_unknown_names_and_classes(name: str) -> None:
    with pytest.raises(UnknownModelError, match=f"did you mean '{name}'"):
        build(name + "x", classes=5)
    too_few = 0 if TargetKind.NUMBER in MODELS[name].targets else 1  # a number is the logit of one class
    with pytest.raises(OptionError, match=f"classes={too_few}: expected at least {too_few + 1}"):
        build(name, classes=too_few)
    assert issubclass(UnknownModelError, ModelError)


def test_every_model_has_a_case_and_a_protocol() -> None:
    assert {name for name, _ in CASES.values()} == MODELS.keys()
    assert all(issubclass(model, Model) for model in MODELS.values())
    with pytest.raises(TypeError, match=r"abstract class Model .*forward"):
        Model(classes=2)


def test_hart_and_the_cnn_share_features_of_one_width() -> None:
    """A federation of both needs prototypes of one D, whatever the CNN's channels are."""
    x = torch.randn(2, 128, 6)
    networks = [build("hart", classes=4), *(build("har_cnn", classes=4, channels=c) for c in ([16, 24], [64, 96]))]
    assert [network.eval()(x).features.shape for network in networks] == [(2, 192)] * 3
