"""Methods on features that a network doesn't take where its head begins: what moves, and what must not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federation.errors import SettingsError
from federation.methods import METHODS, method_from_json
from federation.records import Examples
from federation.records.tree import map_tree
from federation.training.client_round import train_stacked
from models.image.segmentation import SegmenterSmall
from sim.scores.adaptation import adapt_head
from sim.scores.evaluation import ClientModel
from tests.federation.federated import SIZES, federation
from tests.federation.methods.test_contract import as_tree, difference

OF_FEATURES = ("moon", "fedproto", "fedtgp", "fedpr", "fedpac", "fedproto_margin")
WITHOUT_FEATURES = [
    name
    for name, method in METHODS.items()
    if not (name in OF_FEATURES or method.sums_at or method.traits.requires_alp)
]
LAST, ENCODER = "dense, last layer", "segmenter_small, encoder"


@pytest.mark.parametrize("method", OF_FEATURES)
def test_stacked_equals_one_by_one(method: str) -> None:
    """Over two rounds: the first knows no prototypes, and no previous model."""
    fed = federation(METHODS[method](), network_name=LAST)
    clients = dict.fromkeys(SIZES, fed.initial)
    for number in (1, 2):
        broadcasts = [fed.setup.method.broadcast(fed.state, name) for name in SIZES]
        alone = [fed.train(name, client, number) for name, client in clients.items()]
        together = train_stacked(
            fed.setup, list(clients.values()), broadcasts, list(fed.examples.values()), client_ids=list(SIZES),
            round_number=number,
        )  # fmt: skip
        for one, other in zip(alone, together, strict=True):
            assert difference(as_tree(one), as_tree(other)) < 1e-10
        clients = dict(zip(SIZES, [one.client for one in alone], strict=True))
        fed = fed._replace(state=fed.setup.method.aggregate(fed.state, fed.updates()))


def test_prototypes_are_means_of_what_enters_the_last_layer() -> None:
    fed = federation(METHODS["fedproto_margin"](), network_name=LAST)
    trained, examples = fed.train("ada"), fed.examples["ada"]
    w = {name: value.numpy() for name, value in trained.client.params.items()}
    hidden = np.maximum(examples.x.numpy() @ w["dense.0.weight"].T + w["dense.0.bias"], 0)
    features = np.maximum(hidden @ w["head.0.weight"].T + w["head.0.bias"], 0)
    for label in np.unique(examples.y.numpy()):
        wanted = features[examples.y.numpy() == label].mean(0)
        np.testing.assert_allclose(trained.upload["prototypes"][label].numpy(), wanted, atol=1e-10)


def test_prototypes_of_pixels_are_means_of_the_encoders_maps() -> None:
    """A cell at 1/16 of the sides has the class of the pixel at its centre; 255 is no class."""
    fed = federation(METHODS["fedproto_margin"](), task="segmentation", network_name=ENCODER)
    trained, examples = fed.train("ada"), fed.examples["ada"]
    network = SegmenterSmall(classes=3, channels=[8, 8, 8, 16], feature_dim=8).double().eval()
    network.load_state_dict({**trained.client.params, **trained.client.buffers})
    with torch.no_grad():
        maps = network.deep(network.quarter(network.stem(examples.x))).numpy()
    assert maps.shape[1:] == (16, 3, 2)
    rows, columns = [34 * (2 * i + 1) // 6 for i in range(3)], [18 * (2 * j + 1) // 4 for j in range(2)]
    classes = examples.y.numpy()[:, rows][:, :, columns]
    assert {0, 1, 2} <= set(np.unique(classes)), "each class has a cell"
    for label in range(3):
        wanted = maps.transpose(0, 2, 3, 1)[classes == label].mean(0)
        assert int(trained.upload["counts"][label]) == (classes == label).sum()
        np.testing.assert_allclose(trained.upload["prototypes"][label].numpy(), wanted, atol=1e-10)


@pytest.mark.parametrize("method", WITHOUT_FEATURES)
def test_methods_without_features_and_heads_on_the_device_stay(method: str) -> None:
    """The same tensors travel and stay, bit for bit: `features_at` doesn't move the head."""
    usual, other = (federation(METHODS[method](), network_name=name) for name in ("dense", LAST))
    for name in SIZES:
        one, two = (as_tree(fed.train(name)) for fed in (usual, other))
        map_tree(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), one, two)


def test_the_base_of_fedper_ends_where_the_head_begins() -> None:
    upload = federation(METHODS["fedper"](), network_name=LAST).train("ada").upload
    assert set(upload["params"]) == {"dense.0.weight", "dense.0.bias"}


@pytest.mark.parametrize(
    "options", [{"name": "analytic"}, {"name": "pfedfda"}, {"name": "fedproto", "backbone": "frozen"}]
)
def test_heads_are_made_of_what_enters_them(options: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="must be the head's input, but the model's option features_at is last"):
        federation(method_from_json(options), network_name=LAST)
    federation(method_from_json(options), network_name="dense")


def test_a_head_is_not_adapted_to_other_features() -> None:
    fed = federation(METHODS["fedavg"](), network_name=LAST)
    assert adapt_head(ClientModel(fed.setup, fed.initial), fed.examples["ada"].x, 4) is None
    usual = federation(METHODS["fedavg"](), network_name="dense")
    assert adapt_head(ClientModel(usual.setup, usual.initial), usual.examples["ada"].x, 4) is not None


def test_pixels_are_told_by_the_encoders_maps() -> None:
    """Scores of the nearest prototype are those of 3 × 2 cells, scaled up to 34 × 18 pixels."""
    fed = federation(METHODS["fedproto"](), task="segmentation", network_name=ENCODER).next()
    client = fed.setup.method.refresh(fed.train("ada").client, fed.setup.method.broadcast(fed.state, "ada"))
    x = Examples(*fed.examples["ada"]).x
    output = fed.setup.method.predict(fed.setup.network.evaluate, client, x)
    assert output.features.shape[1:] == (16, 3, 2)
    assert output.logits.shape[2:] == (34, 18)
