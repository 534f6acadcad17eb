"""`fedproto` with a frozen backbone: nothing is trained, class means travel, and one network answers the nearest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import models
from federation import wire
from federation.errors import SettingsError
from federation.methods import method_from_json
from federation.records import Client
from federation.records.head import check_dense
from federation.records.tree import flatten
from federation.training.client_round import steps_of, train_stacked
from federation.training.forward import initial_client, network
from federation.wire.schema import upload_schema
from models.registry import learners
from tests.federation.federated import SIZES, Federation, federation
from tests.models.small_models import small

FROZEN = {"name": "fedproto", "backbone": "frozen"}
CLASSES = 3


def frozen(**options: str) -> Federation:
    return federation(method_from_json({**FROZEN, **options}))


def own_means(fed: Federation, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features' mean of each class, and the examples behind it."""
    mine = fed.examples[name]
    features = fed.setup.network.evaluate(fed.initial.params, fed.initial.buffers, mine.x, None).features.numpy()
    counts = np.bincount(mine.y.numpy(), minlength=CLASSES)
    sums = np.stack([features[mine.y.numpy() == c].sum(0) for c in range(CLASSES)])
    return sums / np.maximum(counts, 1)[:, None], counts


def test_nobody_trains_and_class_means_are_averaged_by_their_examples() -> None:
    fed = frozen()
    assert steps_of(fed.setup, 11) == 0
    assert upload_schema(fed.setup.method, fed.setup.training, fed.initial).keys() == {"prototypes", "counts"}
    sums, counts = np.zeros((CLASSES, 16)), np.zeros(CLASSES)
    for name in SIZES:
        result = fed.train(name)
        assert flatten(result.client.params).keys() == flatten(fed.initial.params).keys()
        assert all(torch.equal(value, fed.initial.params[key]) for key, value in result.client.params.items())
        means, n = own_means(fed, name)
        np.testing.assert_allclose(result.upload["prototypes"].numpy(), means, rtol=1e-9, atol=1e-12)
        assert result.upload["counts"].tolist() == n.tolist()
        sums, counts = sums + means * n[:, None], counts + n
    state = fed.next().state
    np.testing.assert_allclose(state["prototypes"].numpy(), sums / counts[:, None], rtol=1e-9, atol=1e-12)
    assert all(torch.equal(value, fed.initial.params[key]) for key, value in state["params"].items())


def test_stacked_clients_measure_what_single_ones_do() -> None:
    fed = frozen().next()
    broadcasts = [fed.setup.method.broadcast(fed.state, "")] * len(SIZES)
    examples = list(fed.examples.values())
    together = train_stacked(
        fed.setup, [fed.initial] * len(SIZES), broadcasts, examples, client_ids=list(SIZES), round_number=2
    )
    for name, result in zip(SIZES, together, strict=True):
        alone = fed.train(name, round_number=2)
        torch.testing.assert_close(result.upload, alone.upload, rtol=1e-10, atol=1e-12)
        assert float(result.loss) == 0


def nearest(features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    distance = ((features[:, None] - prototypes[None]) ** 2).sum(-1)
    return torch.where(known > 0, distance, torch.inf).argmin(1)


@pytest.mark.parametrize("known", [(1, 1, 1, 1, 1), (1, 0, 1, 1, 0), (0, 0, 1, 0, 0)])
@pytest.mark.parametrize("name", learners("classification"))
def test_the_model_for_all_answers_the_nearest_known_prototype(name: str, known: tuple[int, ...]) -> None:
    """Over every network that classifies: an activation of a head for which act(z) − act(−z) is not z would show."""
    method = method_from_json(FROZEN)
    module = small(name, **({"hidden": [6, 12]} if name == "dense" else {}))
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(24, *module.input_shape, generator=draw, dtype=torch.float64)
    initial, run = initial_client(module), network(module).evaluate
    check_dense(initial.params, len(known), "fedproto")
    features = run(initial.params, initial.buffers, x, None).features
    prototypes = features[: len(known)] + 0.3 * features.std() * torch.randn(
        len(known), features.shape[1], generator=draw, dtype=torch.float64
    )
    among = torch.tensor(known, dtype=torch.float64)
    memory = {"prototypes": prototypes, "known": among, "counts": torch.zeros_like(among)}
    served = method.serving_model(Client(initial.params, initial.buffers, memory))
    logits = run(served.params, served.buffers, x, None).logits
    assert torch.isfinite(logits).all()
    assert torch.isfinite(logits.float().softmax(1)).all()
    exact = (2 * features @ prototypes.T - (prototypes**2).sum(1))[:, among > 0].log_softmax(1)
    torch.testing.assert_close(logits[:, among > 0].log_softmax(1), exact, rtol=1e-9, atol=1e-9)
    assert torch.equal(logits.argmax(1), nearest(features, prototypes, among))


def test_before_the_first_round_the_network_answers_by_its_own_head() -> None:
    fed = frozen()
    served = fed.setup.method.serving_model(fed.setup.method.global_model(fed.initial, fed.state))
    assert all(torch.equal(value, fed.initial.params[key]) for key, value in served.params.items())


def test_own_classes_are_those_of_the_client() -> None:
    fed = frozen(predict_classes="own").next()
    mine = fed.examples["bob"]._replace(y=torch.tensor([0, 2, 0, 2]))
    client = fed._replace(examples={"bob": mine}).train("bob").client
    method, x = fed.setup.method, fed.examples["ada"].x
    own = method.predict(fed.setup.network.evaluate, client, x).logits.argmax(1)
    assert set(own.tolist()) <= {0, 2}
    everybody = method.predict(fed.setup.network.evaluate, method.global_model(fed.initial, fed.state), x).logits
    assert 1 in everybody.argmax(1).tolist(), "the case says nothing where no window is nearest to class 1"


def test_the_network_travels_whole_and_comes_back() -> None:
    fed = frozen().next()
    sent = wire.encode(fed.setup.method.broadcast(fed.state, ""))
    tree = wire.decode(sent, limit_bytes=len(sent))
    assert tree.keys() == {"params", "prototypes", "known"}
    assert flatten(tree["params"]).keys() == fed.initial.params.keys()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lam": 2.0}, "doesn't train, so lam=2"),
        ({"distance": "squared_sum"}, "leave lam at 1, and distance at squared"),
        ({"predict_by": "head"}, "trains no head, but predict_by=head"),
        ({"backbone": "thawed"}, "backbone"),
    ],
)
def test_what_means_nothing_without_training_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        method_from_json({**FROZEN, **options})


def test_a_head_that_cannot_be_linear_is_refused() -> None:
    method = method_from_json(FROZEN)
    fed = frozen()
    shapes = {"head.norm.weight": torch.zeros(16), "head.last.weight": torch.zeros(3, 16)}
    base = {name: value for name, value in fed.initial.params.items() if not name.startswith("head.")}
    with pytest.raises(SettingsError, match="one dense layer, or two"):
        method.server_init({**base, **shapes}, {}, fed.setup.training)
    narrow = initial_client(models.build("har_cnn", classes=3, hidden=5))
    with pytest.raises(SettingsError, match="6 for 3 classes, and this network's head has 5"):
        method.server_init(narrow.params, narrow.buffers, fed.setup.training)
