"""One round of each method that shares prototypes, small enough to be computed by hand; the numbers stand here."""

from __future__ import annotations

import math

import pytest
import torch

from federation import wire
from federation.aggregation.class_statistics import class_stats
from federation.aggregation.prototypes import min_max_normalized
from federation.errors import RoundError, SettingsError
from federation.method import empty_training_stats
from federation.methods import METHODS, method_from_json
from federation.methods.fedpac import combination_weights
from federation.methods.fedproto_margin import class_margins
from federation.plan import TrainingConfig
from federation.records import Batch, Client, Output, Tree, Update
from federation.tasks.classification import Classification
from federation.tasks.task import LabelledFeatures
from federation.training.client_round import train_stacked
from models.layers.alp import ALP
from models.layers.matching import similarity, transport_plan
from tests.federation.by_hand import Play, TwoWeights, scalars, sigmoid, update, weight
from tests.federation.federated import federation


def rows(*values: float) -> torch.Tensor:
    """Prototypes of width 1, one a class."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "fedproto"}, [3.25, 7.0]),  # (1·1 + 3·4)/4
        ({"name": "fedproto", "weighting": "uniform"}, [2.5, 7.0]),
        ({"name": "fedpr"}, [2.5, 7.0]),
        ({"name": "fedpac"}, [3.25, 7.0]),
    ],
)
def test_global_prototypes(options: dict[str, str], expected: list[float]) -> None:
    """ada has only class 0, so her row of class 1 must not count, whatever it holds; nobody has class 2."""
    method = method_from_json(options)
    extra = {"weighted_means": torch.zeros(3, 1), "variance": torch.tensor(1.0)}
    updates = [
        update("ada", 1, 0.0, prototypes=rows(1.0, 99.0, 0.0), counts=torch.tensor([1.0, 0.0, 0.0]), **extra),
        update("bob", 5, 0.0, prototypes=rows(4.0, 7.0, 0.0), counts=torch.tensor([3.0, 2.0, 0.0]), **extra),
    ]
    start = {"params": scalars(w=0.0), "prototypes": rows(0, 0, 5), "known": rows(0, 0, 1)[:, 0]}
    state = method.aggregate(start, updates)
    assert state["prototypes"][:, 0].tolist() == pytest.approx([*expected, 5.0])
    assert state["known"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("options", "pull"),
    [
        ({"name": "fedproto", "lam": 0.5}, 0.5 * 2 * (1 - 3)),  # ∂ λ(e − P)² = 2λ(e − P)
        ({"name": "fedpr"}, 2 * (1 - 3)),
        ({"name": "fedpr", "distance": "norm"}, -1.0),  # ∂ |e − P| = −1 below P
    ],
)
def test_pull_towards_the_prototype(options: dict[str, object], pull: float) -> None:
    """ada (x = 1, class 0) at b = h = 1 with P[0] = 3: the base moves by −(g·h·x + pull), the head by −g·b·x."""
    played = Play(method_from_json(options), TwoWeights())
    played.state = {**played.state, "prototypes": rows(3.0, 0.0), "known": torch.tensor([1.0, 0.0]).double()}
    played.round()
    ada, g = played.clients["ada"], sigmoid(1) - 1
    assert weight(ada.params, "base") == pytest.approx(1 - (g + pull))
    assert weight(ada.params, "head.w") == pytest.approx(1 - g)
    bob = played.clients["bob"]  # nobody knows class 1, so nothing pulls him
    assert weight(bob.params, "base") == pytest.approx(1 - 2 * sigmoid(2))
    # P[0] is ada's feature after training, P[1] bob's
    features = [weight(ada.params, "base"), 2 * weight(bob.params, "base")]
    assert played.state["prototypes"][:, 0].tolist() == pytest.approx(features)


@pytest.mark.parametrize("name", ["fedproto", "fedpr", "fedpac"])
@pytest.mark.parametrize(
    ("distance", "expected"),
    # (1, 2, 2) and (0, 3, 4) are 3 and 5 away from the prototype 0 of their class; the third has no prototype
    [("squared", (9 + 25) / 3 / 3), ("squared_sum", (9 + 25) / 3), ("norm", (3 + 5) / 3)],
)
def test_lambda_multiplies_the_distance_that_was_asked_for(name: str, distance: str, expected: float) -> None:
    """Of features of width D = 3, in float64; what the loss has beyond λ = 0."""
    features = torch.tensor([[1.0, 2.0, 2.0], [0.0, 3.0, 4.0], [7.0, 7.0, 7.0]], dtype=torch.float64)
    batch = Batch(features, torch.tensor([0, 0, 1]), torch.ones(3, dtype=torch.float64))
    known = {"prototypes": torch.zeros(2, 3, dtype=torch.float64), "known": torch.tensor([1.0, 0.0]).double()}

    class Mirror:
        def train(self, params: Tree, buffers: Tree, x: torch.Tensor, mask: torch.Tensor | None) -> Output:
            return Output(x, x[:, :2], {})

    def loss(lam: float) -> float:
        method = method_from_json({"name": name, "lam": lam, "distance": distance})
        return float(method.loss(Classification(), Mirror(), {}, {}, batch, known)[0])  # type: ignore[arg-type]

    assert loss(2.0) - loss(0.0) == pytest.approx(2 * expected)


def test_prediction_by_the_nearest_prototype() -> None:
    method = METHODS["fedproto"]()

    def forward(params: Tree, buffers: Tree, x: torch.Tensor, mask: torch.Tensor | None = None) -> Output:
        return Output(x, torch.tensor([[0.0, 9.0, 0.0]]).expand(len(x), 3), {})

    def classes(known: list[float]) -> list[int]:
        memory = {"prototypes": rows(0.0, 4.0, 3.0), "known": torch.tensor(known), "counts": torch.zeros(3)}
        return method.predict(forward, Client({}, {}, memory), rows(1.0, 3.2)).logits.argmax(-1).tolist()

    assert classes([1.0, 1.0, 0.0]) == [0, 1]
    assert classes([1.0, 1.0, 1.0]) == [0, 2]
    assert classes([0.0, 0.0, 0.0]) == [1, 1], "before the first round the head decides"


@pytest.mark.parametrize(
    ("own", "expected"),
    # features 1, 3.2 and 3.6 against prototypes 0, 4 and 3 of the classes 0, 1 and 2
    [([5, 2, 9], [0, 2, 1]), ([5, 2, 0], [0, 1, 1]), ([0, 0, 1], [2, 2, 2]), ([0, 0, 0], [0, 2, 1])],
)
@pytest.mark.parametrize("name", ["fedproto", "fedpr", "fedpac"])
def test_prediction_among_a_clients_own_classes(name: str, own: list[int], expected: list[int]) -> None:
    def forward(params: Tree, buffers: Tree, x: torch.Tensor, mask: torch.Tensor | None = None) -> Output:
        return Output(x, torch.tensor([[0.0, 9.0, 0.0]]).expand(len(x), 3), {})

    def classes(predict_classes: str, known: torch.Tensor) -> list[int]:
        options = {"name": name, "predict_by": "prototype", "predict_classes": predict_classes}
        memory = {"prototypes": rows(0.0, 4.0, 3.0), "known": known, "counts": torch.tensor(own).double()}
        found = method_from_json(options).predict(forward, Client({}, {}, memory), rows(1.0, 3.2, 3.6))
        return found.logits.argmax(-1).tolist()

    assert classes("own", torch.ones(3)) == expected, "of who has never trained: among all"
    assert classes("all", torch.ones(3)) == [0, 2, 1]
    assert classes("own", torch.zeros(3)) == [1, 1, 1], "by the head"


def test_a_client_remembers_its_own_classes() -> None:
    """ada has an example of class 0 only, bob two of class 1; round 2's prototypes do not overwrite that."""
    played = Play(METHODS["fedproto"](), TwoWeights()).round().round()
    assert {name: one.memory["counts"].tolist() for name, one in played.clients.items()} == {
        "ada": [1.0, 0.0],
        "bob": [0.0, 2.0],
    }


def test_own_classes_are_refused_where_the_head_predicts() -> None:
    with pytest.raises(SettingsError, match="fedpac: predict_classes=own chooses among prototypes, but predict_by=hea"):
        method_from_json({"name": "fedpac", "predict_classes": "own"})


def test_fedproto_sends_four_and_a_half_kilobytes_for_six_classes() -> None:
    stats = TrainingConfig(classes=6, feature_dim=192)
    _, tree = METHODS["fedproto"]().upload(
        Client({}, {}, {}), {}, empty_training_stats(METHODS["fedproto"](), stats, torch.zeros(1))
    )
    assert {name: value.nbytes for name, value in tree.items()} == {"prototypes": 4608, "counts": 24}


def test_fedpac_measures_its_statistics() -> None:
    """Features 1, 3 of class 0 and 2 of class 1: h = (⅔·2, ⅓·2), v = ⅓(14/3 − (16/9 + 4/9)) = 22/27."""
    labelled = LabelledFeatures(rows(1.0, 3.0, 2.0), torch.tensor([0, 0, 1]), torch.ones(3).double())
    stats = class_stats(labelled, 2)
    training, like = TrainingConfig(classes=2, feature_dim=1), torch.zeros(1).double()
    stats = empty_training_stats(METHODS["fedproto"](), training, like)._replace(before=stats)
    _, tree = METHODS["fedpac"]().upload(Client({}, {}, {}), {}, stats)
    assert tree["weighted_means"][:, 0].tolist() == pytest.approx([4 / 3, 2 / 3])
    assert float(tree["variance"]) == pytest.approx(22 / 27)


def test_fedpac_combines_heads() -> None:
    """Two clients, v = 1 and δ² = ‖h_1 − h_2‖² = 2: Q = diag(1, 1 + 2), so α = (3, 1)/4 for the first."""
    weights = combination_weights(torch.tensor([[[0.0]], [[math.sqrt(2)]]]), torch.ones(2))
    assert weights.flatten().tolist() == pytest.approx([0.75, 0.25, 0.25, 0.75])
    same = {"prototypes": rows(0.0), "counts": torch.ones(1), "variance": torch.tensor(1.0)}
    models = {"ada": scalars(**{"base": 0.0, "head.w": 0.0}), "bob": scalars(**{"base": 8.0, "head.w": 8.0})}
    means = {"ada": rows(0.0), "bob": rows(math.sqrt(2))}
    updates = [
        Update(name, 1, 1, {**same, "params": params, "weighted_means": means[name]}) for name, params in models.items()
    ]
    method = METHODS["fedpac"]()
    state = method.aggregate({"params": models["ada"], "prototypes": rows(0.0), "known": torch.zeros(1)}, updates)
    sent = {name: method.broadcast(state, name)["params"] for name in ("ada", "bob", "new")}
    assert [weight(params, "base") for params in sent.values()] == pytest.approx([4.0, 4.0, 4.0])
    assert [weight(params, "head.w") for params in sent.values()] == pytest.approx([2.0, 6.0, 4.0])


def test_margins() -> None:
    """c = 0: d⁺ = 0, d⁻ = 4, so 1; c = 1: d⁺ = 3, d⁻ = 5, so 2/8."""
    ours = torch.tensor([[0.0, 0.0], [3.0, 4.0], [7.0, 7.0]])
    others = torch.tensor([[0.0, 0.0], [0.0, 4.0], [1.0, 1.0]])
    present = torch.tensor([1.0, 1.0, 0.0])
    assert class_margins(ours, others, present, "margin").tolist() == pytest.approx([1.0, 0.25, 0.0])
    assert class_margins(ours, others, present, "positive").tolist() == pytest.approx([0.0, -3.0, 0.0])
    assert class_margins(ours, others, torch.tensor([1.0, 0.0, 0.0]), "margin").tolist() == [0.0, 0.0, 0.0]
    same = torch.zeros(2, 2)
    assert class_margins(same, same, torch.ones(2), "margin").tolist() == [0.0, 0.0], "both distances vanish"
    some = torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]])
    assert min_max_normalized(some).tolist() == [[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("margins", "expected"), [("lpm", 2.8), ("apm", 2.5), ("both", 2.65)])
def test_fedproto_margin(margins: str, expected: float) -> None:
    """LPM Σμ = 0 and log 3, so v = ½ and ¾, a = (0.4, 0.6); one shared class, so APM is 0 for both: a = (½, ½)."""
    method = method_from_json({"name": "fedproto_margin", "margins": margins})
    sent = {"prototypes": torch.tensor([[0.0, 2.0], [0.0, 0.0]]), "counts": torch.tensor([1.0, 0.0])}
    updates = [
        update("ada", 1, 1.0, **sent, margins=torch.zeros(2)),
        update("bob", 9, 4.0, **sent, margins=torch.tensor([math.log(3), 0.0])),
    ]
    start = {"params": scalars(w=0.0), "prototypes": torch.zeros(2, 2), "known": torch.zeros(2)}
    first = method.aggregate(start, updates)
    assert weight(first["params"]) == pytest.approx(3.7), "by examples in the first round"
    assert first["prototypes"].tolist() == [[0.0, 1.0], [0.0, 0.0]]
    assert weight(method.aggregate(first, updates)["params"]) == pytest.approx(expected)


def prototypes(*values: float) -> Tree:
    return {"alp.": rows(*values)}


def test_fedali() -> None:
    """Start (1·0 + 3·2)/4 = 1.5 and (1·10 + 3·14)/4 = 13; then {0, 2} and {10, 14} are the clusters."""
    method = METHODS["fedali"]()
    params = {"w": torch.tensor(0.0)}
    state = {"params": params, "prototypes": prototypes(0.0, 0.0), "rounds": torch.tensor(0)}
    updates = [
        update("ada", 1, 1.0, prototypes=prototypes(0.0, 10.0)),
        update("bob", 3, 5.0, prototypes=prototypes(2.0, 14.0)),
    ]
    new = method.aggregate(state, updates)
    assert weight(new["params"]) == pytest.approx(4.0)
    assert new["prototypes"]["alp."].flatten().tolist() == pytest.approx([1.0, 12.0])
    buffers = {"alp.local_prototypes": torch.zeros(2, 1), "alp.global_prototypes": torch.ones(2, 1)}
    client, _ = method.receive(Client(params, buffers, {}), method.broadcast(new, ""))
    for kind in ("local", "global"):
        assert client.buffers[f"alp.{kind}_prototypes"].flatten().tolist() == pytest.approx([1.0, 12.0])


@pytest.mark.parametrize(("warmup", "factors"), [(None, [0, 1, 1]), (0, [1, 1, 1]), (2, [0, 0, 1])])
def test_fedali_begins_without_beta(warmup: int | None, factors: list[int]) -> None:
    """Rounds 1 to 3 by the wire; the server's model serves with the factor of the round that made it, at first 1."""
    given = {} if warmup is None else {"beta_warmup_rounds": warmup}
    method = method_from_json({"name": "fedali", **given})
    buffers = {f"alp.{kind}_prototypes": rows(0.0, 0.0) for kind in ("local", "global")}
    client = Client({"w": torch.tensor(0.0)}, {**buffers, "alp.beta_scale": torch.tensor(0.25).double()}, {})
    state = method.server_init(client.params, client.buffers, TrainingConfig(classes=2))
    trained, served = [], []
    for _ in factors:
        broadcast = by_wire(method.broadcast(state, ""))
        trained.append(method.receive(client, broadcast)[0].buffers["alp.beta_scale"].item())
        served.append(method.global_model(client, broadcast).buffers["alp.beta_scale"].item())
        state = by_wire(method.aggregate(state, [update("ada", 1, 1.0, prototypes=prototypes(0.0, 1.0))]))
    assert trained == factors
    assert served == [1, *factors[:-1]]


def by_wire(tree: Tree) -> Tree:
    return wire.decode(wire.encode(tree), limit_bytes=1 << 20)


def test_fedali_does_not_go_on_with_a_state_that_counts_no_rounds() -> None:
    method = METHODS["fedali"]()
    state = {"params": {"w": torch.tensor(0.0)}, "prototypes": prototypes(0.0, 1.0)}
    updates = [update("ada", 1, 1.0, prototypes=prototypes(0.0, 1.0))]
    for act in (lambda: method.broadcast(state, ""), lambda: method.aggregate(state, updates)):
        with pytest.raises(RoundError, match=r"an earlier version of fedali wrote it.*create a new federation"):
            act()


def test_fedali_counts_rounds_from_none() -> None:
    with pytest.raises(SettingsError, match=r"beta_warmup_rounds=-1: expected 0 \(none\) or more"):
        method_from_json({"name": "fedali", "beta_warmup_rounds": -1})


@pytest.mark.parametrize("stacked", [False, True])
def test_fedalis_first_round_trains_on_normalized_tokens_and_its_second_on_aligned_ones(stacked: bool) -> None:
    """What each round's client computes, against eq. 7 by hand with β = 0, then 0.2."""
    begun = federation(METHODS["fedali"](), epochs=1)
    for number, (beta, moves) in enumerate([(0.0, False), (0.2, True)], 1):
        broadcast = begun.setup.method.broadcast(begun.state, "ada")
        if stacked:
            one = [begun.initial] * 2, [broadcast] * 2, [begun.examples["ada"]] * 2
            result = train_stacked(begun.setup, *one, client_ids=["ada", "ada"], round_number=number)[1]
        else:
            result = begun.train("ada", round_number=number)
        layer, trained = ALP(16, 5).double().eval(), result.client
        everything = {**trained.params, **trained.buffers}
        layer.load_state_dict({n.removeprefix("alp."): v for n, v in everything.items() if n.startswith("alp.")})
        tokens = torch.randn(3, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        flat, local = tokens.reshape(-1, 16), trained.buffers["alp.local_prototypes"]
        taken = local[transport_plan(similarity(flat, local, "plan"), 0.05, 3, None).argmax(1)]
        value, gate = (taken @ trained.params["alp.glu.weight"].T + trained.params["alp.glu.bias"]).chunk(2, 1)
        wanted = beta * value / (1 + (-gate).exp()) + (1 - beta) * flat
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
        torch.testing.assert_close(layer(tokens).reshape(-1, 16), wanted, rtol=1e-10, atol=1e-10)
        started = broadcast["params"]["alp.glu.weight"]
        # without β no gradient reaches the GLU
        assert torch.equal(trained.params["alp.glu.weight"], started) != moves
        assert not torch.equal(local, broadcast["prototypes"]["alp."])
        begun = begun.next()


def test_fedali_says_that_it_needs_prototypes() -> None:
    with pytest.raises(SettingsError, match="fedali needs a model with ALP layers"):
        METHODS["fedali"]().server_init({"w": torch.zeros(1)}, {}, TrainingConfig(classes=2))
