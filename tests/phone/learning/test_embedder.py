"""Embeddings by ONNX Runtime for the web are those of the native one, on an exported network."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import phone
from export.onnx_export import export_onnx
from export.runtime import Session
from gaitway.input_spec import InputSpec
from har_pipeline import ChannelStatistics
from models import build
from tests.export.conftest import metadata, waves
from tests.phone.learning.conftest import ByNode

TOLERANCE = 1e-5
ORT = phone.APP / "vendor" / "ort" / "ort.wasm.min.mjs"


def plan(labels: tuple[str, ...], **data: Any) -> dict[str, Any]:
    return {
        "labels": list(labels),
        "data": {"pipeline": {}, "normalization": "client", "statistics": None, "test_share": 0.2, **data},
    }


@pytest.mark.ci
@pytest.mark.skipif(not ORT.is_file(), reason="no ONNX Runtime for the web: make phone")
def test_embeddings_are_native_ones(tmp_path: Path, by_node: ByNode) -> None:
    """Of a network that is given raw windows, and normalizes them by the plan's statistics."""
    x, _ = waves(300, 3)
    statistics = ChannelStatistics.of(x)
    torch.manual_seed(5)
    module = build("har_cnn", classes=4, dropout=0.0)
    said = metadata("har_cnn", input=InputSpec.windows(statistics.mean.tolist(), statistics.std.tolist()))
    export_onnx(module, tmp_path / "light.onnx", metadata=said, examples=x)
    federated = {"normalization": "federated", "statistics": statistics.to_json()}
    fits, others = plan(said.labels, **federated), [plan(said.labels), plan(said.labels[::-1], **federated)]
    packed = base64.b64encode(x.astype("<f4").tobytes()).decode()
    request = {"model": str(tmp_path / "light.onnx"), "plan": fits, "refused": others, "x": packed}
    found = by_node("embeddings_of.mjs", request)

    native = Session.load(tmp_path / "light.onnx").predict(x).embedding
    np.testing.assert_allclose(np.array(found["embeddings"]).reshape(native.shape), native, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(found["one"], native[0], rtol=0, atol=TOLERANCE)
    assert found["again"]
    assert found["loadedOnce"]
    assert found["none"] == 0
    assert found["turns"] > 1
    assert found["progress"][-1] == len(x)
    assert len(found["progress"]) > 10
    words = ["the model normalizes by mean", "the model's classes are rest"]
    assert all(refusal.startswith(word) for refusal, word in zip(found["refusals"], words, strict=True))
