"""Gradient dissimilarity against the definition, and the gradient against one that is worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from federation.records import Examples
from models.model import Model
from models.output import ModelOutput
from sim.analysis.gradients import dissimilarity, gradients, mean_gradient
from sim.errors import AnalysisError
from tests.sim.analysis.conftest import Finished


class Linear(Model):
    """Logits (B, 2) of x (B, 2) by a matrix of zeros, so that each class has probability ½."""

    def __init__(self) -> None:
        super().__init__(2)
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> ModelOutput:
        return ModelOutput(x, self.head(x))


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_the_gradient_by_hand(batch: int) -> None:
    # ∂L/∂W = mean of (½ − [class])·x: ½((−½, ½)ᵀ(2, 0) + (½, −½)ᵀ(0, 4))
    examples = Examples(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1]))
    assert mean_gradient(Linear(), examples, batch).tolist() == [-0.5, 1.0, 0.5, -1.0]


def test_dissimilarity_is_the_definition() -> None:
    vectors = torch.randn(4, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    counts = [5, 1, 9, 3]
    found = dissimilarity(zip("abcd", counts, vectors, strict=True))
    mean = (torch.tensor(counts)[:, None] * vectors).sum(0) / sum(counts)
    assert found.value == pytest.approx(float(((vectors - mean) ** 2).sum(1).mean()), rel=1e-12)
    assert found.overall == pytest.approx(float(mean @ mean), rel=1e-12)
    assert found.clients["b"] == pytest.approx(float(vectors[1] @ vectors[1]))


def test_clients_that_agree_have_none() -> None:
    same = torch.full((5,), 0.3, dtype=torch.float64)
    assert dissimilarity([("a", 3, same), ("b", 7, same)]).value == pytest.approx(0, abs=1e-15)


def test_a_run_at_its_servers_model(finished: Finished) -> None:
    section = gradients(finished("fedavg"))
    assert section.values["dissimilarity"] > 0
    assert len(section.values["client_squares"]) == 2


def test_a_method_without_a_servers_model_says_so(finished: Finished) -> None:
    with pytest.raises(AnalysisError, match="no global model in a run of fedper"):
        gradients(finished("fedper"))
