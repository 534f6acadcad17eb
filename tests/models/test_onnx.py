"""The networks as ONNX, exported the way `export` does it, against torch on batches of other sizes."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from models.layers.alp import set_inference
from tests.models.small_models import CASES, small

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
