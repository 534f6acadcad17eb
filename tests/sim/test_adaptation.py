"""Adaptation without labels: the surest half of each recognized class is what the new head answers by."""

from __future__ import annotations

import pytest
import torch

from federation.methods import METHODS
from federation.records import Examples
from sim.scores.adaptation import adapt_head, confident_centroids
from sim.scores.evaluation import ClientModel, Evaluator
from tests.federation.federated import federation


def test_centroids_are_of_the_surest_half_of_each_class() -> None:
    """Rows 0 to 3 are put into class 0, surest first 2 and 0; row 4 into class 2; nothing into class 1."""
    logits = torch.tensor([[3.0, 0, 0], [1.0, 0, 0], [9.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]])
    features = torch.tensor([[1.0], [10.0], [3.0], [20.0], [7.0]])
    centroids, known = confident_centroids(features, logits)
    assert centroids.flatten().tolist() == [2.0, 0.0, 7.0]
    assert known.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedproto", "fedala"])
def test_the_adapted_network_answers_the_nearest_centroid(method: str) -> None:
    fed = federation(METHODS[method]())
    client, x = fed.train("ada").client, torch.cat([fed.examples["bob"].x, fed.examples["cyd"].x])
    adapted = adapt_head(ClientModel(fed.setup, client), x, batch_size=4)
    assert adapted is not None
    network = fed.setup.network.evaluate
    served = fed.setup.method.predict(network, client, x)
    centroids, known = confident_centroids(served.features, served.logits)
    distances = torch.cdist(served.features, centroids) + torch.where(known > 0, 0.0, torch.inf)
    output = adapted.setup.method.predict(network, adapted.client, x)
    assert output.logits.argmax(1).tolist() == distances.argmin(1).tolist()
    assert Evaluator(4).evaluate_client(adapted, Examples(x, torch.zeros(len(x)).long())) is not None


def test_nothing_is_adapted_where_no_window_or_no_class_is() -> None:
    fed = federation(METHODS["fedavg"]())
    model = ClientModel(fed.setup, fed.initial)
    unchanged = adapt_head(model, fed.examples["ada"].x[:0], 4)
    assert unchanged is not None
    assert unchanged.client is fed.initial
    masks = federation(METHODS["fedavg"](), task="segmentation")
    assert adapt_head(ClientModel(masks.setup, masks.initial), masks.examples["ada"].x, 4) is None
