"""What methods make of pixels, against numpy that goes from pixel to pixel: distances, contrasts, predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federation.aggregation import prototypes
from federation.methods import method_from_json
from federation.records import Batch, Client, Output, Tensors, Tree
from federation.tasks.segmentation import Segmentation
from federation.training.forward import Network

TASK = Segmentation()
RANDOM = np.random.default_rng(3)
FEATURES, TARGETS = RANDOM.normal(size=(2, 5, 3, 4)), RANDOM.choice([0, 1, 2, 255], size=(2, 3, 4))
LOGITS = RANDOM.normal(size=(2, 3, 3, 4))
PROTOTYPES = RANDOM.normal(size=(3, 5))
KNOWN = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
STATE = {"prototypes": torch.from_numpy(PROTOTYPES), "known": KNOWN}
OUTPUT = Output(torch.from_numpy(FEATURES), torch.from_numpy(LOGITS), {})
BATCH = Batch(OUTPUT.logits, torch.from_numpy(TARGETS), torch.ones(2, dtype=torch.float64))


def network_of(features: np.ndarray) -> Network:
    def forward(params: Tensors, buffers: Tensors, x: torch.Tensor, mask: torch.Tensor | None = None) -> Output:
        return OUTPUT._replace(features=params["shift"] + torch.from_numpy(features))

    return Network(forward, forward)


def shifted(by: float) -> Tensors:
    return {"shift": torch.tensor(by, dtype=torch.float64)}


@pytest.mark.parametrize("method", ["fedproto", "fedpr", "fedpac"])
def test_labelled_pixels_are_pulled_to_their_prototypes(method: str) -> None:
    """mse(e, P[y]) of each labelled pixel, 0 for class 1, which has no prototype; ignored pixels do not count."""
    found = []
    for n, i, j in np.ndindex(2, 3, 4):
        c = TARGETS[n, i, j]
        if c != 255:
            found.append(((FEATURES[n, :, i, j] - PROTOTYPES[c]) ** 2).mean() * float(KNOWN[c]))
    network = network_of(FEATURES)
    with_, without = (
        method_from_json({"name": method, "lam": lam}).loss(TASK, network, shifted(0.0), {}, BATCH, STATE)[0]
        for lam in (0.5, 0.0)
    )
    assert float(with_ - without) == pytest.approx(0.5 * np.mean(found), rel=1e-10)


def test_moon_contrasts_pixel_by_pixel() -> None:
    def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        found: np.ndarray = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
        return found

    alike, unlike = cosine(FEATURES, FEATURES + 0.3), cosine(FEATURES, FEATURES - 0.7)
    contrast = np.log1p(np.exp((unlike - alike) / 0.5)).mean()
    state: Tree = {
        "global": {"params": shifted(0.3), "buffers": {}},
        "previous": {"params": shifted(-0.7), "buffers": {}},
    }
    loss, _ = method_from_json({"name": "moon", "mu": 2.0}).loss(
        TASK, network_of(FEATURES), shifted(0.0), {}, BATCH, state
    )
    assert float(loss - TASK.mean_loss(OUTPUT, BATCH)) == pytest.approx(2 * contrast, rel=1e-10)


@pytest.mark.parametrize("scale", [1, 2])
def test_a_pixel_is_of_the_class_of_the_nearest_known_prototype(scale: int) -> None:
    """Where logits are finer than features the scores are interpolated: at the corners they are the corners'."""
    logits = torch.zeros(2, 3, 3 * scale, 4 * scale, dtype=torch.float64)
    client = Client(shifted(0.0), {}, {**STATE, "counts": KNOWN})
    method = method_from_json({"name": "fedproto"})
    found = method.predict(lambda *_: OUTPUT._replace(logits=logits), client, BATCH.x)
    answers = TASK.prediction(found)
    assert answers.shape == (2, 3 * scale, 4 * scale)
    for n, i, j in np.ndindex(2, 3, 4):
        if scale == 1 or (i in (0, 2) and j in (0, 3)):
            distances = ((FEATURES[n, :, i, j] - PROTOTYPES) ** 2).sum(1)
            place = (n, i if scale == 1 or i == 0 else -1, j if scale == 1 or j == 0 else -1)
            assert int(answers[place]) == (0 if distances[0] < distances[2] else 2)
    nothing = prototypes.nearest(OUTPUT.features, STATE["prototypes"], torch.zeros_like(KNOWN), logits + 7)
    assert torch.equal(nothing, logits + 7), "without any prototype the head decides"
