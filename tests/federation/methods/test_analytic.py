"""One round by exact sums: against ridge regression in float64 numpy, and what exactness promises."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.aggregation import ridge
from federation.aggregation.present_sums import KeptContributions
from federation.aggregation.ridge_numpy import Damping, FixedSums, solve_mean
from federation.errors import SettingsError
from federation.methods.analytic import Analytic
from federation.plan import TrainingConfig
from federation.records import Client, Examples, Tree, Update
from federation.records.head import with_linear_head
from federation.records.tree import flatten
from federation.seeds import generator
from federation.tasks.classification import Classification
from federation.tasks.task import LabelledFeatures
from federation.training.client_round import train_one, train_stacked
from federation.training.forward import initial_client, network
from federation.training.local_round import Setup
from federation.training.window_changes import rotations
from models import build

CLASSES, COSINES, LAMBDA = 3, 24, 1e-2
D = 183 + COSINES
TRAINING = TrainingConfig(classes=CLASSES, feature_dim=D, batch_size=16)
NAMES = ("ada", "bob", "cyd", "dan")


def examples(seed: int, count: int = 40) -> Examples:
    """Windows of three ways to move, which each person has in other numbers and with another vigour."""
    draw = np.random.default_rng(seed)
    y = draw.choice(CLASSES, count, p=draw.dirichlet(np.ones(CLASSES) * 3))
    time = np.arange(128)[None, :, None] / 50
    x = draw.normal(0, 0.3, (count, 128, 6)) + np.array([0, 0, 9.8, 0, 0, 0])
    x += (y[:, None, None] * draw.uniform(0.6, 1.4)) * np.sin(2 * np.pi * (0.8 + y)[:, None, None] * time)
    return Examples(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def federation(**options: Any) -> tuple[Setup, Client, Tree]:
    torch.manual_seed(0)
    module = build("har_features", classes=CLASSES, cosines=COSINES)
    method = Analytic(**options)
    setup = Setup(method, TRAINING, network(module), Classification())
    client = method.init_client_state(initial_client(module), TRAINING)
    return setup, client, method.server_init(client.params, client.buffers, TRAINING)


DATA = {name: examples(seed) for seed, name in enumerate(NAMES)}
SETUP, FRESH, STATE = federation()
METHOD = SETUP.method


def update_of(name: str, mine: Examples | None = None) -> Update:
    mine = DATA[name] if mine is None else mine
    found = train_one(SETUP, FRESH, METHOD.broadcast(STATE, name), mine, client_id=name, round_number=1)
    return Update(name, len(mine.y), 0, found.upload)


UPDATES = {name: update_of(name) for name in NAMES}


def same(one: Tree, other: Tree) -> bool:
    left, right = flatten(one), flatten(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def features(mine: Examples) -> np.ndarray:
    """Features with a 1 at the end, in float64."""
    with torch.no_grad():
        found = SETUP.network.evaluate(FRESH.params, FRESH.buffers, mine.x, None).features.double().numpy()
    return np.concatenate([found, np.ones((len(found), 1))], 1)


def numpy_sums(mine: Examples) -> tuple[np.ndarray, np.ndarray]:
    a, y = features(mine), mine.y.numpy()
    w = (1 / np.sqrt(np.bincount(y, minlength=CLASSES).clip(1)))[y][:, None]
    return (a * w).T @ a, (a * w).T @ np.eye(CLASSES)[y]


def numpy_ridge(gram: np.ndarray, moment: np.ndarray) -> np.ndarray:
    return np.linalg.solve(gram + LAMBDA * np.trace(gram) / len(gram) * np.eye(len(gram)), moment)


def numpy_free_head(gram: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Ridge regression of the sub-block that knows no axes; zero on the others."""
    free = np.flatnonzero(np.append(FRESH.buffers["orientation_free"].numpy(), 1))
    found = np.zeros_like(moment)
    found[free] = numpy_ridge(gram[np.ix_(free, free)], moment[free])
    return found


def numpy_head(gram: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """A third of the one, the rest of the other."""
    return 0.67 * numpy_ridge(gram, moment) + 0.33 * numpy_free_head(gram, moment)


def test_the_shared_head_is_ridge_regression_of_everybody() -> None:
    state = METHOD.aggregate(STATE, UPDATES.values())
    gram, moment = (sum(parts) for parts in zip(*map(numpy_sums, DATA.values()), strict=True))
    expected = numpy_head(gram, moment)
    np.testing.assert_allclose(state["params"]["head.weight"].numpy(), expected[:-1].T, atol=2e-3)
    for mine in DATA.values():
        logits = METHOD.predict(
            SETUP.network.evaluate, METHOD.global_model(FRESH, METHOD.broadcast(state, "")), mine.x
        ).logits.numpy()
        np.testing.assert_allclose(logits, features(mine) @ expected, atol=2e-3)
        assert (logits.argmax(1) == mine.y.numpy()).mean() > 0.9


def test_the_sums_that_travel_are_numpys_up_to_a_step_of_fixed_point() -> None:
    gram, moment = numpy_sums(DATA["bob"])
    sent = UPDATES["bob"].tensors
    upper = gram[np.triu_indices(D + 1)]
    scale = max(np.abs(upper).max(), 1)
    assert sent["gram"].dtype == torch.int32
    np.testing.assert_allclose(sent["gram"].numpy() / ridge.SUM_STEPS, upper, atol=2**-12 * scale)
    np.testing.assert_allclose(sent["moment"].numpy() / ridge.SUM_STEPS, moment, atol=2**-12 * scale)


def test_a_client_predicts_by_all_sums_and_its_own() -> None:
    state = METHOD.aggregate(STATE, UPDATES.values())
    grams, moments = zip(*map(numpy_sums, DATA.values()), strict=True)
    for k, name in enumerate(NAMES):
        expected = numpy_head(sum(grams) + len(NAMES) * grams[k], sum(moments) + len(NAMES) * moments[k])
        client = train_one(
            SETUP, FRESH, METHOD.broadcast(STATE, name), DATA[name], client_id=name, round_number=1
        ).client
        newer = METHOD.refresh(client, METHOD.broadcast(state, name))
        logits = METHOD.predict(SETUP.network.evaluate, newer, DATA[name].x).logits.numpy()
        np.testing.assert_allclose(logits, features(DATA[name]) @ expected, atol=5e-3)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_head_without_axes_has_its_share_in_the_shared_one(share: float) -> None:
    setup, _, start = federation(orientation_free_share=share)
    state = setup.method.aggregate(start, UPDATES.values())
    gram, moment = (sum(parts) for parts in zip(*map(numpy_sums, DATA.values()), strict=True))
    expected = (1 - share) * numpy_ridge(gram, moment) + share * numpy_free_head(gram, moment)
    np.testing.assert_allclose(state["params"]["head.weight"].numpy(), expected[:-1].T, atol=2e-3)


def test_one_exchange_gives_four_heads() -> None:
    """Shared and own, and both without axes."""
    state = METHOD.aggregate(STATE, UPDATES.values())
    grams, moments = zip(*map(numpy_sums, DATA.values()), strict=True)
    sums = {"shared": (sum(grams), sum(moments))}
    sums["personalized"] = (sums["shared"][0] + 4 * grams[0], sums["shared"][1] + 4 * moments[0])
    broadcast = METHOD.broadcast(state, "ada")
    found = train_one(SETUP, FRESH, broadcast, DATA["ada"], client_id="ada", round_number=2).client
    models = METHOD.serving_models(found)
    assert list(models) == ["shared", "personalized", "shared_any_orientation", "personalized_any_orientation"]
    assert same(models["personalized"]._asdict(), METHOD.serving_model(found)._asdict())
    free = np.flatnonzero(np.append(FRESH.buffers["orientation_free"].numpy(), 1))
    assert len(free) == 90 + COSINES // 2 + 1
    for name, model in models.items():
        parts = sums[name.removesuffix("_any_orientation")]
        expected = (numpy_free_head if name.endswith("_any_orientation") else numpy_head)(*parts)
        params = model.params
        np.testing.assert_allclose(params["head.weight"].numpy(), expected[:-1].T, atol=5e-3, err_msg=name)
        np.testing.assert_allclose(params["head.bias"].numpy(), expected[-1], atol=5e-3, err_msg=name)
        assert name.endswith("_any_orientation") == bool((params["head.weight"] == 0).all(0).any())


def test_a_network_that_names_no_columns_has_two_heads() -> None:
    module = build("dense", classes=CLASSES, input_shape=[4], hidden=[6, 8])
    training = TrainingConfig(classes=CLASSES, feature_dim=6)
    client = METHOD.init_client_state(initial_client(module), training)
    state = METHOD.server_init(client.params, client.buffers, training)
    client, _ = METHOD.receive(client, METHOD.broadcast(state, ""))
    client = METHOD.refresh(client, METHOD.broadcast(state, ""))
    assert list(METHOD.serving_models(client)) == ["shared", "personalized"]


def test_changed_copies_are_windows_like_any_other_in_the_sums() -> None:
    """Against numpy on windows turned by hand, as a client draws each time, and on those without a gyroscope."""
    setup, fresh, state = federation(rotations=2, sensor_loss=True)
    mine, method = DATA["bob"], setup.method
    broadcast = method.broadcast(state, "bob")
    first, again = (train_one(setup, fresh, broadcast, mine, client_id="bob", round_number=k) for k in (1, 5))
    assert same(first.upload, again.upload)
    x = [mine.x]
    for copy in (1, 2):
        draws = generator(TRAINING.seed, "rotations", "bob", copy).random((len(mine.y), 3), np.float32)
        turned = [np.einsum("nij,ntj->nti", rotations(draws), mine.x[..., at : at + 3].numpy()) for at in (0, 3)]
        x.append(torch.from_numpy(np.concatenate(turned, 2)))
    x.append(torch.cat([mine.x[..., :3], torch.zeros_like(mine.x[..., 3:])], -1))
    gram, moment = numpy_sums(Examples(torch.cat(x), mine.y.repeat(4)))
    for name, wanted in (("gram", gram[np.triu_indices(D + 1)]), ("moment", moment)):
        found = first.upload[name].numpy() / ridge.SUM_STEPS
        np.testing.assert_allclose(found, wanted, atol=2**-11 * np.abs(wanted).max(), err_msg=name)
    assert not method.implausibility(first.upload, len(mine.y), TRAINING)
    assert "claimed" in METHOD.implausibility(first.upload, len(mine.y), TRAINING)
    stacked = train_stacked(
        setup, [fresh] * 4, [broadcast] * 4, list(DATA.values()), client_ids=list(NAMES), round_number=1
    )
    gram_alone, gram_stacked = (each.upload["gram"].double() for each in (first, stacked[1]))
    assert float((gram_alone - gram_stacked).abs().max()) <= 2**-10 * float(gram_alone.abs().max())


@pytest.mark.parametrize("order", list(permutations(NAMES))[::5])
def test_order_and_cohorts_change_no_bit(order: tuple[str, ...]) -> None:
    """All in one round; one round each; two and two: the same state but for how long ago each has sent."""
    whole = METHOD.aggregate(STATE, UPDATES.values())
    one_by_one = STATE
    for name in order:
        one_by_one = METHOD.aggregate(one_by_one, [UPDATES[name]])
    pairs = METHOD.aggregate(STATE, [UPDATES[name] for name in order[:2]])
    pairs = METHOD.aggregate(pairs, [UPDATES[name] for name in order[2:]])
    for other in (one_by_one, pairs):
        assert same(METHOD.broadcast(whole, ""), METHOD.broadcast(other, ""))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=12))
def test_the_state_is_that_of_whoever_takes_part_now(events: list[tuple[str, bool]]) -> None:
    """Joining, sending again and leaving in any order: bit for bit as if the rest had never been there."""
    state, kept = STATE, KeptContributions()
    for name, joins in events:
        if not joins and name not in kept.trees:
            continue
        update = kept.replacing(UPDATES[name]) if joins else kept.withdrawal(name)
        state = METHOD.aggregate(state, [update])
        kept.note([update])
    present = sorted(kept.trees)
    if present:
        assert same(state, METHOD.aggregate(STATE, [UPDATES[name] for name in present]))
    else:
        assert same({"sums": state["sums"]}, {"sums": STATE["sums"]})


def test_newer_sums_of_a_client_replace_its_older_ones() -> None:
    more = update_of("ada", Examples(*(torch.cat(pair) for pair in zip(DATA["ada"], examples(77), strict=True))))
    state = METHOD.aggregate(
        METHOD.aggregate(STATE, UPDATES.values()), [more._replace(replaces=UPDATES["ada"].tensors)]
    )
    assert same(
        METHOD.broadcast(state, ""),
        METHOD.broadcast(METHOD.aggregate(STATE, [more, *(UPDATES[name] for name in NAMES[1:])]), ""),
    )
    assert int(state["sums"]["clients"]) == 4


def test_batches_and_stacking_change_no_bit() -> None:
    """Features are given; products of whole numbers are added without error however they are cut."""
    draw = torch.Generator().manual_seed(0)
    rows = LabelledFeatures(
        4 * torch.randn(300, 9, generator=draw), torch.randint(0, CLASSES, (300,), generator=draw), torch.ones(300)
    )
    empty = ridge.empty_ridge_sums(CLASSES, 9, torch.zeros(()))
    whole = ridge.added(empty, rows, 4.0)
    parts = empty
    for low in (200, 0, 100):
        parts = ridge.added(parts, LabelledFeatures(*(part[low : low + 100] for part in rows)), 4.0)
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)
    broadcasts = [METHOD.broadcast(STATE, name) for name in NAMES]
    stacked = train_stacked(SETUP, [FRESH] * 4, broadcasts, list(DATA.values()), client_ids=list(NAMES), round_number=1)
    for name, found in zip(NAMES, stacked, strict=True):
        gram, alone = found.upload["gram"].double(), UPDATES[name].tensors["gram"].double()
        assert float((gram - alone).abs().max()) <= 2**-10 * float(alone.abs().max())  # features are float32


def test_absurd_features_weigh_no_more_than_the_clip() -> None:
    rows = LabelledFeatures(torch.full((10, 3), 1e30), torch.zeros(10, dtype=torch.int64), torch.ones(10))
    sums = ridge.travelling(ridge.added(ridge.empty_ridge_sums(CLASSES, 3, torch.zeros(())), rows, 4.0))
    assert float(sums["gram"].abs().max()) / ridge.SUM_STEPS == pytest.approx(16 * 10**0.5, rel=1e-4)


def test_nobody_without_sums_breaks_a_round() -> None:
    none = Examples(DATA["ada"].x[:0], DATA["ada"].y[:0])
    state = METHOD.aggregate(STATE, [update_of("ada", none), UPDATES["bob"]])
    assert all(torch.isfinite(each).all() for each in flatten(state["params"]).values())
    gram, moment = numpy_sums(DATA["bob"])
    expected = with_linear_head(STATE["params"], *(torch.tensor(p) for p in _split(numpy_head(gram, moment))))
    np.testing.assert_allclose(state["params"]["head.weight"], expected["head.weight"], atol=2e-3)


def _split(head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return head[:-1].T.copy(), head[-1].copy()


@pytest.mark.parametrize(
    "options",
    [
        {"ridge": 0},
        {"ridge": float("nan")},
        {"clip": 0},
        {"clip": 9},
        {"own_weight": -1},
        {"orientation_free_share": 1.1},
        {"rotations": 17},
        {"degrees": 0},
    ],
)
def test_impossible_numbers_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        Analytic(**options)


def test_a_network_whose_head_cannot_be_linear_is_refused() -> None:
    params = {
        "head.0.weight": torch.zeros(4, 8),
        "head.2.weight": torch.zeros(3, 4),
        "head.3.weight": torch.zeros(3, 3),
    }
    with pytest.raises(SettingsError, match="analytic needs a network whose head is one dense layer"):
        Analytic().server_init(params, {}, TrainingConfig(classes=3, feature_dim=8))


def test_a_device_without_a_gyroscope_has_heads_of_a_sub_block_of_the_same_sums() -> None:
    torch.manual_seed(0)
    module = build("har_features", classes=CLASSES, features=60)
    training = TRAINING.model_copy(update={"feature_dim": module.feature_dim})
    setup = Setup(METHOD, training, network(module), Classification())
    fresh = METHOD.init_client_state(initial_client(module), training)
    state = METHOD.server_init(fresh.params, fresh.buffers, training)
    before = METHOD.broadcast(state, "ada")
    assert METHOD.without_sensor(fresh, before) is before  # nobody's sums have come
    found = {
        name: train_one(setup, fresh, before, mine, client_id=name, round_number=1).upload
        for name, mine in DATA.items()
    }
    state = METHOD.aggregate(state, [Update(name, 40, 0, upload) for name, upload in found.items()])
    whole = METHOD.broadcast(state, "ada")
    lacking = METHOD.without_sensor(fresh, whole)
    has, free = (fresh.buffers[name].numpy() for name in ("acceleration", "orientation_free"))
    heads = METHOD.serving_models(METHOD.refresh(METHOD.receive(fresh, lacking)[0], lacking))
    for head in heads.values():
        assert not head.params["head.weight"].numpy()[:, has == 0].any()
    columns = np.flatnonzero(has).tolist()
    sums = FixedSums.of(whole["sums"]).restricted(columns)
    wanted = solve_mean(sums, None, 0, Damping(LAMBDA), np.flatnonzero(free).tolist(), 0.33)
    np.testing.assert_allclose(heads["shared"].params["head.weight"].numpy(), wanted.weight, atol=1e-5)
    assert np.abs(wanted.weight[:, columns]).max() > 0
    assert same(whole, METHOD.broadcast(state, "ada"))  # those with a gyroscope pay nothing
    old = METHOD.broadcast(METHOD.aggregate(STATE, UPDATES.values()), "ada")
    assert METHOD.without_sensor(FRESH, old) is old  # a network that doesn't say
