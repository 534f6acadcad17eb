"""FedBABU and FedALA by hand; pFedFDA and FedTGP against scipy, numpy and torch's own modules and optimizer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from federation.aggregation import class_statistics
from federation.errors import SettingsError
from federation.methods import METHODS, method_from_json
from federation.methods.fedtgp import FedTgp, adaptive_margin
from federation.methods.pfedfda import Gaussians, PFedFda, estimate, linear_classifier
from federation.plan import TrainingConfig
from federation.records import Tree, Update
from federation.tasks.task import LabelledFeatures
from tests.federation.by_hand import Play, TwoWeights, sigmoid, weight
from tests.federation.federated import federation

# TwoWeights from b = h = 1: ada's g = σ(1) − 1, bob's g = σ(2) · 2, and both weights move alike
ADA, BOB = 1 - (sigmoid(1) - 1), 1 - sigmoid(2) * 2
MEAN = (ADA + 2 * BOB) / 3


# ---- FedBABU


@pytest.mark.parametrize("part", ["all", "head", "body"])
def test_fedbabu(part: str) -> None:
    played = Play(method_from_json({"name": "fedbabu", "fine_tuned": part}), TwoWeights()).round()
    assert list(played.uploads["ada"]["params"]) == list(played.state["params"]) == ["base"]
    assert weight(played.state["params"], "base") == pytest.approx(MEAN) == pytest.approx(-0.0847489654)
    ada = played.round().clients["ada"].params
    slope = sigmoid(MEAN) - 1  # of the received body under the head 1, at ada's x = 1
    assert weight(ada, "head.w") == 1.0, "the head of the federation never moves"
    assert weight(ada, "base") == pytest.approx(MEAN - slope)
    served = played.method.serving_model(played.clients["ada"]).params
    assert served.keys() == {"base", "head.w"}
    assert weight(served, "base") == pytest.approx(MEAN - slope if part != "head" else MEAN)
    assert weight(served, "head.w") == pytest.approx(1 - slope * MEAN if part != "body" else 1)


def test_fedbabus_servers_model_is_the_body_under_the_initial_head() -> None:
    played = Play(METHODS["fedbabu"](), TwoWeights()).round()
    served = played.method.serving_model(played.method.global_model(played.clients["bob"], played.state))
    assert (weight(served.params, "base"), weight(served.params, "head.w")) == (pytest.approx(MEAN), 1.0)


# ---- FedALA


@pytest.mark.parametrize(
    ("eta", "optimizer", "ends"), [(0.1, "sgd", set()), (0.1, "adam", set()), (50.0, "sgd", {0.0, 1.0})]
)
def test_fedala_learns_how_much_of_the_global_head_to_take(eta: float, optimizer: str, ends: set[float]) -> None:
    """W takes plain steps under Adam, too; with η = 50 steps lead out of [0, 1]: bob's below, ada's above."""
    played = Play(method_from_json({"name": "fedala", "eta": eta}), TwoWeights(), optimizer=optimizer).round()
    played.state["params"]["head.w"] -= 3  # so that the global head is a bad one
    owns = {name: weight(one.params, "head.w") for name, one in played.clients.items()}
    base, head = (weight(played.state["params"], name) for name in ("base", "head.w"))
    if optimizer == "sgd":
        assert owns == {"ada": pytest.approx(ADA), "bob": pytest.approx(BOB)}, "first there is nothing to mix"
        assert (base, head) == (pytest.approx(MEAN), pytest.approx(MEAN - 3))
    assert [weight(one.params, "aggregation_weight:head.w") for one in played.clients.values()] == [1.0, 1.0]
    played.round()
    for name, x, is_first in (("ada", 1.0, 1.0), ("bob", 2.0, 0.0)):
        gap, client = head - owns[name], played.clients[name].params
        slope = (sigmoid(head * base * x) - is_first) * x  # of the logit h·b, from the whole global model: W = 1
        mixing = min(1.0, max(0.0, 1 - eta * slope * base * gap))
        assert weight(client, "aggregation_weight:head.w") == pytest.approx(mixing)
        assert not ends or mixing in ends
        mixed = owns[name] + gap * mixing
        slope = (sigmoid(mixed * base * x) - is_first) * x
        if optimizer == "sgd":
            assert weight(client, "head.w") == pytest.approx(mixed - slope * base)
            assert weight(client, "base") == pytest.approx(base - slope * mixed)


# ---- pFedFDA


def gaussians(seed: int, classes: int = 3, width: int = 4) -> Gaussians:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(width, width))
    return Gaussians(torch.tensor(rng.normal(size=(classes, width))), torch.tensor(root @ root.T + np.eye(width)))


def sample(seed: int, rows: int = 30) -> tuple[Tensor, Tensor]:
    """Return features (n, 4) and classes (n, 3); the last row counts not."""
    rng, one_hot = np.random.default_rng(seed), torch.eye(3, dtype=torch.float64)
    labels = rng.integers(0, 3, rows)
    classes = one_hot[torch.tensor(labels)]
    classes[-1] = 0
    return torch.tensor(rng.normal(size=(rows, 4)) + labels[:, None]), classes


def posterior(x: np.ndarray[Any, Any], means: Any, covariance: Any, counts: Any) -> Any:
    """Return log p(c | x) (n, C) by scipy's normal densities, with the authors' two shares of 1e-4."""
    covariance = (1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    share = counts / max(counts.sum(), 1) + 1e-4
    joint = np.stack([multivariate_normal(mean, covariance).logpdf(x) for mean in means], 1)
    joint = joint + np.log(share / share.sum())
    return joint - np.logaddexp.reduce(joint, 1, keepdims=True)


def test_pfedfdas_head_is_the_bayes_classifier() -> None:
    fit, counts, (x, _) = gaussians(0), torch.tensor([3.0, 0.0, 9.0]).double(), sample(1)
    weights, bias = linear_classifier(fit, counts)
    ours = torch.log_softmax(x @ weights.T + bias, 1).numpy()
    np.testing.assert_allclose(ours, posterior(x.numpy(), *map(np.asarray, fit), counts.numpy()), atol=1e-9)


def test_pfedfda_estimates_as_numpy_does() -> None:
    x, classes = sample(2)
    classes[:, 2] = 0  # nobody has class 2, and its rows count not
    rows, labels = classes.sum(1).numpy() > 0, classes.numpy().argmax(1)
    found = estimate(x, classes, torch.full((3, 4), 7.0).double(), shrink=0.5)
    means = np.stack([x.numpy()[rows & (labels == c)].mean(0) for c in (0, 1)])
    np.testing.assert_allclose(found.means.numpy(), np.concatenate([means, np.full((1, 4), 7.0)]))
    centred = x.numpy()[rows] - means[labels[rows]]
    np.testing.assert_allclose(found.covariance.numpy(), centred.T @ centred / (rows.sum() - 1) + 0.5 * np.eye(4))


@pytest.mark.parametrize("one_beta", [True, False])
def test_pfedfda_chooses_beta_by_two_folds(one_beta: bool) -> None:
    x, classes = sample(3)
    common, counts = gaussians(4), classes.sum(0)
    method = PFedFda(one_beta=one_beta)
    found = [float(beta) for beta in method.betas(x, classes, common, counts)]
    labels = np.where(classes.sum(1).numpy() > 0, classes.numpy().argmax(1), -1)
    turns = np.array([(labels[:row] == label).sum() % 2 for row, label in enumerate(labels)])
    halves = [(labels >= 0) & (turns == parity) for parity in (0, 1)]

    def loss(of_means: float, of_covariance: float) -> float:
        total = 0.0
        for mine, others in (halves, halves[::-1]):
            one_hot = classes * torch.tensor(mine)[:, None]
            fit = [np.asarray(each) for each in estimate(x, one_hot, common.means, 0.01)]
            means, covariance = (
                b * a + (1 - b) * np.asarray(c) for a, c, b in zip(fit, common, (of_means, of_covariance), strict=True)
            )
            chances = posterior(x.numpy()[others], means, covariance, counts.numpy())
            total -= chances[np.arange(len(chances)), labels[others]].mean()
        return total

    grid = np.linspace(0, 1, 11)
    if one_beta:
        assert found[0] == found[1] == pytest.approx(grid[np.argmin([loss(b, b) for b in grid])])
    else:
        assert loss(*found) <= min(loss(*pair) for pair in ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (found[0], 0.5))) + 1e-9
        assert found[1] == pytest.approx(grid[np.argmin([loss(found[0], b) for b in grid])])


def test_pfedfda_takes_the_global_estimates_where_no_fold_can_be_made() -> None:
    x, common = sample(3)[0], gaussians(4)
    single = torch.zeros(30, 3).double()
    single[0, 0] = single[1, 1] = 1
    assert [float(beta) for beta in PFedFda().betas(x, single, common, single.sum(0))] == [0.0, 0.0]


def test_pfedfda_serves_with_the_head_of_what_it_sends() -> None:
    fed = federation(METHODS["pfedfda"]())
    result = fed.train("ada")
    assert not any(name.startswith("head.") for name in result.upload["params"])
    counts = torch.bincount(fed.examples["ada"].y, minlength=3).double()
    assert result.client.memory["counts"].tolist() == counts.tolist()
    weights, bias = linear_classifier(Gaussians(result.upload["means"], result.upload["covariance"]), counts)
    output = fed.setup.network.evaluate(result.client.params, result.client.buffers, fed.examples["ada"].x, None)
    torch.testing.assert_close(output.logits, output.features @ weights.T + bias, atol=1e-9, rtol=0)
    state = fed.next().state
    sent = [(update.examples, update.tensors["means"]) for update in fed.updates()]
    torch.testing.assert_close(state["means"], sum(n * means for n, means in sent) / sum(n for n, _ in sent))


def test_pfedfda_keeps_the_last_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_statistics, "CAPACITY", 4)
    training = TrainingConfig(classes=2, feature_dim=1)
    kept = class_statistics.empty_sample(training, torch.zeros(1))
    for start, counted in ((1.0, [1.0, 1.0, 0.0]), (3.0, [1.0, 1.0, 1.0])):
        values = torch.arange(3)[:, None] + start
        kept = class_statistics.added(kept, LabelledFeatures(values, torch.tensor([0, 1, 1]), torch.tensor(counted)))
    features, classes = class_statistics.rows_of_classes(kept)
    assert features[:, 0].tolist() == [5.0, 2.0, 3.0, 4.0], "the fifth has taken the first one's place"
    assert classes.argmax(1).tolist() == [1, 1, 0, 1]
    assert (int(kept.seen), kept.class_counts.tolist()) == (5, [2.0, 3.0])


# ---- FedTGP


@pytest.mark.parametrize(
    ("known", "limit", "margin"),
    [
        ([1.0, 1.0, 1.0], 100.0, 7.0),
        ([1.0, 1.0, 1.0], 5.0, 5.0),
        ([1.0, 1.0, 0.0], 100.0, 3.0),
        ([1.0, 0, 0], 9.0, 9.0),
    ],
)
def test_the_margin_is_the_largest_distance_to_the_nearest_class(
    known: list[float], limit: float, margin: float
) -> None:
    """At 0, 3 and 10 the nearest ones are 3, 3 and 7 away."""
    means = torch.tensor([[0.0], [3.0], [10.0]])
    assert float(adaptive_margin(means, torch.tensor(known), limit)) == pytest.approx(margin)


def uploads() -> list[Update]:
    rng = np.random.default_rng(5)
    return [
        Update(
            name, 4, 1, {"prototypes": torch.tensor(rng.normal(size=(3, 4))), "counts": torch.tensor(counts).double()}
        )
        for name, counts in (("ada", [2.0, 2.0, 0.0]), ("bob", [1.0, 0.0, 0.0]))
    ]


def test_fedtgp_trains_its_prototypes_as_torch_does() -> None:
    """The same network, loss and three steps of torch.optim.SGD; nobody has class 2."""
    training = TrainingConfig(classes=3, feature_dim=4, seed=3)
    method = FedTgp(server_epochs=3, server_lr=0.1, server_batch=99, max_margin=1.5)
    start = method.server_init({"w": torch.zeros(1).double()}, {}, training)
    state = method.aggregate(start, uploads())

    embedding, hidden, output = nn.Embedding(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    layers = nn.ModuleDict({"embedding": embedding, "hidden": hidden, "output": output}).double()
    named = {name.replace("embedding.weight", "embedding"): value for name, value in layers.named_parameters()}
    with torch.no_grad():
        for name, value in named.items():
            value.copy_(start["generator"][name])
    ada, bob = (update.tensors["prototypes"] for update in uploads())
    rows, classes = torch.cat([ada[:2], bob[:1]]), torch.tensor([0, 1, 0])
    margin = min(1.5, float(((ada[0] + bob[0]) / 2 - ada[1]).norm()))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(3):
        made = output(torch.relu(hidden(embedding.weight)))
        distance = (rows[:, None] - made[None]).norm(dim=2) + margin * nn.functional.one_hot(classes, 3)
        optimizer.zero_grad()
        nn.functional.cross_entropy(-distance, classes).backward()
        optimizer.step()
    for name, value in named.items():
        torch.testing.assert_close(state["generator"][name], value.detach(), atol=1e-9, rtol=0)
        assert not torch.equal(value, start["generator"][name])
    made = output(torch.relu(hidden(embedding.weight))).detach()
    torch.testing.assert_close(state["prototypes"][:2], made[:2])
    assert state["known"].tolist() == [1.0, 1.0, 0.0], "who answers class 2 has never heard of it"
    assert method.broadcast(state, "ada").keys() == {"prototypes", "known"}


def test_fedtgp_pulls_the_prototypes_of_a_class_together() -> None:
    training = TrainingConfig(classes=3, feature_dim=4)
    method = FedTgp(server_epochs=300, server_lr=0.05)
    state = method.aggregate(method.server_init({"w": torch.zeros(1).double()}, {}, training), uploads())
    ada = uploads()[0].tensors["prototypes"]
    assert [int((state["prototypes"][:2] - row).norm(dim=1).argmin()) for row in ada[:2]] == [0, 1]


REFUSED: list[tuple[Tree, str]] = [
    ({"name": "fedtgp", "backbone": "frozen"}, "use fedproto"),
    ({"name": "fedtgp", "average_over": "clients"}, "use fedproto"),
    ({"name": "fedtgp", "server_lr": 0}, "a rate above 0"),
    ({"name": "fedtgp", "max_margin": math.inf}, "max_margin=inf: expected"),
    ({"name": "fedala", "eta": -1}, "eta=-1.0: expected a learning rate"),
    ({"name": "fedala", "weight_epochs": -1}, "weight_epochs=-1: expected 0 or more"),
    ({"name": "pfedfda", "shrink": 0}, "shrink=0.0: expected a number above 0"),
]


@pytest.mark.parametrize(("description", "words"), REFUSED)
def test_what_trains_nothing_is_refused(description: Tree, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        method_from_json(description)
