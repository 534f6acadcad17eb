"""What the table says of its models: their kinds of examples, and which is which with ALP layers."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from federation.records.head import is_base, is_head
from gaitway.input_spec import HEAD, InputSpec
from models import MODELS, UnknownModelError, build
from models.errors import OptionError
from models.har_cnn import HarCnn
from models.layers.alp import ALP, set_inference
from models.registry import alp_models, family, learners, models_for, with_alp
from tests.models.small_models import CASES, SMALL, small


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_names_its_twin_without_alp_has_alp_layers_and_the_others_have_none(name: str) -> None:
    with torch.device("meta"):
        layers = [layer for layer in build(name, classes=3, **SMALL[name]).modules() if isinstance(layer, ALP)]
    assert bool(layers) == (name in alp_models())
    assert family(name) in MODELS
    assert family(family(name)) == family(name)


def test_families() -> None:
    assert {name: family(name) for name in alp_models()} == {
        "hart_alp": "hart", "har_cnn_alp": "har_cnn", "vit_tiny_alp": "vit_tiny",
    }  # fmt: skip
    assert [with_alp(family(name)) for name in alp_models()] == alp_models()
    assert family("an_alp") == "an_alp"  # not of this table: nothing is read into the name
    with pytest.raises(UnknownModelError, match=r"resnet18.*vit_tiny_alp"):
        with_alp("resnet18")


def test_which_models_take_which_examples() -> None:
    none, one = (0.0,) * 6, (1.0,) * 6
    learnt = "classification"
    of_windows = set(models_for(InputSpec.windows(none, one), learnt))
    assert {"hart", "har_features", "har_cnn"} < of_windows
    assert not {"dense", "resnet18", "segmenter_small"} & of_windows
    assert "har_cnn" in models_for(InputSpec.windows(none, one, window=100), learnt)
    assert "hart" not in models_for(InputSpec.windows(none, one, window=100), learnt), "its patches need 128 samples"
    assert "dense" in models_for(InputSpec.vectors(none, one), learnt)
    image = InputSpec.images((1, 28, 28), (0.0,), (1.0,))
    images = models_for(image, learnt)
    assert {"dense", "resnet18", "vit_tiny"} < set(images)
    assert not {"hart", "har_cnn", "segmenter_small"} & set(images)
    assert models_for(image, "segmentation") == learners("segmentation")
    assert models_for(InputSpec.windows(none, one), "segmentation") == []
    assert all(model.learnt_tasks() for model in MODELS.values())


def test_a_model_does_not_take_an_image_of_the_shape_of_its_windows_or_another_shape() -> None:
    module = build("dense", classes=2, input_shape=[6])
    assert module.accepts(InputSpec.vectors((0.0,) * 6, (1.0,) * 6))
    assert not module.accepts(InputSpec.vectors((0.0,) * 7, (1.0,) * 7))
    assert not build("har_cnn", classes=2).accepts(InputSpec.images((3, 128, 6), (0.0,) * 3, (1.0,) * 3))


@pytest.mark.parametrize("name", MODELS)
def test_models_and_methods_mean_the_same_head(name: str) -> None:
    with torch.device("meta"):
        names = [parameter for parameter, _ in build(name, classes=3, **SMALL[name]).named_parameters()]
    assert [n for n in names if is_head(n)] == [n for n in names if n.startswith(HEAD)] != []
    assert any(is_base(n) for n in names) is not (name == "har_features")  # nothing below its head trains


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_running_statistics_are_refused(layer: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    class Normed(HarCnn):
        def __init__(self, classes: int, *, tracked: bool = True, **options: Any) -> None:
            super().__init__(classes, **options)
            self.norm = layer(6, track_running_stats=tracked)

    monkeypatch.setitem(MODELS, "normed", Normed)
    with pytest.raises(OptionError, match=rf"its layer norm is a {layer.__name__}.*nn\.GroupNorm"):
        build("normed", classes=3)
    assert isinstance(build("normed", classes=3, tracked=False), Normed)


# HART and the HAR CNN are exported for real in tests/export; of the rest the quickest in every run.
ALWAYS = ("mnist_cnn",)
WINDOWS = ("hart", "hart_alp", "har_cnn", "har_cnn_alp")


def marked(case: str) -> Any:
    return pytest.param(case, marks=() if case in ALWAYS else pytest.mark.slow)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("case", [marked(case) for case in CASES if case not in WINDOWS])
def test_onnx_runtime_computes_what_torch_does(case: str) -> None:
    model = small(case).float().eval()
    set_inference(model, "row")
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(
        model, (torch.randn(4, *model.input_shape),), dynamo=True, dynamic_shapes=batch, external_data=False,
        opset_version=18, input_names=["x"], output_names=["features", "logits"], verbose=False,
    )  # fmt: skip
    assert program is not None
    content = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for size in (1, 2, 7):
        x = torch.randn(size, *model.input_shape)
        with torch.no_grad():
            wanted = model(x)
        for found, want in zip(session.run(None, {"x": x.numpy()}), wanted, strict=True):
            np.testing.assert_allclose(found, want.numpy(), atol=1e-4)
