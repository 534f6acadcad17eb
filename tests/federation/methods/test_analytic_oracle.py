"""The whole method against float64 numpy, written from its specification alone: windows in, heads out.

Nothing of ours computes on the reference's side but the constants that ship (scale, cosines). What it would see: a
wrong bin of the spectrum, a weight, a regularizer, a sub-block, an axis, that two paths of ours have in common.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from federation.aggregation import ridge
from federation.methods.analytic import Analytic
from federation.plan import TrainingConfig
from federation.records import Client, Examples, Tree, Update
from federation.tasks.classification import Classification
from federation.tasks.task import LabelledFeatures
from federation.training.client_round import train_one
from federation.training.forward import initial_client, network
from federation.training.local_round import Setup
from models import build
from models.har_features import HarFeatures
from tests.models.har_reference import reference

CLASSES, COSINES, DAMPING = 3, 40, 1e-2
NAMES = ("ada", "bob", "cyd")


def recorded(seed: int, count: int = 60) -> Examples:
    draw = np.random.default_rng(seed)
    y = np.arange(count) % CLASSES
    time = np.arange(128)[None, :, None] / 50
    x = draw.normal(0, 0.4, (count, 128, 6)) + np.array([0.5, 1.0, 9.7, 0, 0, 0])
    x += (
        (1 + y[:, None, None])
        * draw.uniform(0.5, 1.5, (count, 1, 6))
        * np.sin(2 * np.pi * (0.9 + y)[:, None, None] * time)
    )
    return Examples(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


DATA = {name: recorded(seed, 45 + 15 * seed) for seed, name in enumerate(NAMES)}


class Sums(NamedTuple):
    """G (d, d) and B (d, C)."""

    gram: np.ndarray
    moment: np.ndarray


def lifted(module: HarFeatures, x: np.ndarray) -> np.ndarray:
    """a = [z, 2 cos(z R + b), 1] in float64, z clipped to ±4."""
    scale = (module.feature_mean, module.feature_std, module.projection, module.phase)
    mean, std, directions, phase = (value.double().numpy() for value in scale)
    z = np.clip((reference(x) - mean) / std, -4, 4)
    return np.concatenate([z, 2 * np.cos(z @ directions + phase), np.ones((len(x), 1))], 1)


def summed(a: np.ndarray, y: np.ndarray) -> Sums:
    """Σ w a aᵀ and Σ w a yᵀ, w = 1 / √n_class."""
    w = 1 / np.sqrt(np.bincount(y, minlength=CLASSES).clip(1))[y][:, None]
    return Sums((w * a).T @ a, (w * a).T @ np.eye(CLASSES)[y])


def solved(sums: Sums, columns: np.ndarray | None = None) -> np.ndarray:
    """(G + λ tr(G)/d I)⁻¹ B, or of a sub-block, zero elsewhere."""
    chosen = np.arange(len(sums.gram)) if columns is None else columns
    gram = sums.gram[np.ix_(chosen, chosen)]
    found = np.zeros_like(sums.moment)
    found[chosen] = np.linalg.solve(
        gram + DAMPING * np.trace(gram) / len(gram) * np.eye(len(gram)), sums.moment[chosen]
    )
    return found


@pytest.fixture(scope="module")
def played() -> tuple[Setup, Client, Tree, HarFeatures]:
    """A federation after its one round, by the path that simulations and devices take."""
    torch.manual_seed(0)
    module = build("har_features", classes=CLASSES, cosines=COSINES)
    training = TrainingConfig(classes=CLASSES, feature_dim=183 + COSINES, batch_size=16)
    method = Analytic(ridge=DAMPING)
    setup = Setup(method, training, network(module), Classification())
    client = method.init_client_state(initial_client(module), training)
    state = method.server_init(client.params, client.buffers, training)
    updates = []
    for name, mine in DATA.items():
        sent = train_one(setup, client, method.broadcast(state, name), mine, client_id=name, round_number=1).upload
        updates.append(Update(name, len(mine.y), 0, sent))
    return setup, client, method.aggregate(state, updates), module


def parts(module: HarFeatures) -> dict[str, Sums]:
    return {name: summed(lifted(module, mine.x.numpy()), mine.y.numpy()) for name, mine in DATA.items()}


def test_the_sums_that_travel_are_the_references(played: tuple[Setup, Client, Tree, HarFeatures]) -> None:
    *_, state, module = played
    total = [sum(values) for values in zip(*parts(module).values(), strict=True)]
    size = len(total[0])
    gram = state["sums"]["gram"].double().numpy() / ridge.SUM_STEPS
    # features are float32 and rounded to 2⁻¹²: an entry of the sums is off by some thousandths
    np.testing.assert_allclose(gram, total[0][np.triu_indices(size)], atol=2e-3 * np.abs(total[0]).max())
    moment = state["sums"]["moment"].double().numpy() / ridge.SUM_STEPS
    np.testing.assert_allclose(moment, total[1], atol=2e-3 * np.abs(total[1]).max())


def test_all_four_heads_answer_as_the_reference(played: tuple[Setup, Client, Tree, HarFeatures]) -> None:
    setup, client, state, module = played
    assert isinstance(setup.method, Analytic)
    own = parts(module)
    total = Sums(*(sum(values) for values in zip(*own.values(), strict=True)))
    free = np.array([*module.orientation_free_columns, 183 + COSINES])
    new = recorded(77)
    a = lifted(module, new.x.numpy())
    for name, mine in DATA.items():
        broadcast = setup.method.broadcast(state, name)
        found = train_one(setup, client, broadcast, mine, client_id=name, round_number=2).client
        personal = Sums(*(shared + len(NAMES) * part for shared, part in zip(total, own[name], strict=True)))
        expected = {
            "shared": 0.67 * solved(total) + 0.33 * solved(total, free),
            "personalized": 0.67 * solved(personal) + 0.33 * solved(personal, free),
            "shared_any_orientation": solved(total, free),
            "personalized_any_orientation": solved(personal, free),
        }
        for head, model in setup.method.serving_models(found).items():
            with torch.no_grad():
                logits = setup.network.evaluate(model.params, model.buffers, new.x, None).logits.numpy()
            np.testing.assert_allclose(logits, a @ expected[head], atol=1e-2, err_msg=f"{name} {head}")
            assert (logits.argmax(1) == (a @ expected[head]).argmax(1)).mean() > 0.98


def test_centralized_with_the_same_weights_is_federated_to_1e_9() -> None:
    """Before anything is rounded for the wire: all examples in one place, each weighed as its own client weighs it."""
    draw = np.random.default_rng(3)
    clients = [(draw.normal(0, 2, (n, 12)), draw.choice(CLASSES, n)) for n in (40, 7, 133)]
    rows = [np.rint(np.clip(features, -4, 4) * 4096) / 4096 for features, _ in clients]  # as clients round features
    a = np.concatenate([np.concatenate([each, np.ones((len(each), 1))], 1) for each in rows])
    y = np.concatenate([classes for _, classes in clients])
    weights = np.concatenate(
        [1 / np.sqrt(np.bincount(classes, minlength=CLASSES).clip(1))[classes] for _, classes in clients]
    )
    gram, moment = (a * weights[:, None]).T @ a, (a * weights[:, None]).T @ np.eye(CLASSES)[y]
    federated = [np.zeros_like(gram), np.zeros_like(moment)]
    for features, classes in clients:
        labelled = LabelledFeatures(torch.tensor(features), torch.tensor(classes), torch.ones(len(classes)))
        sums = ridge.added(ridge.empty_ridge_sums(CLASSES, 12, torch.zeros(())), labelled, 4.0)
        weight = torch.where(sums.counts > 0, sums.counts.clamp(min=1) ** -0.5, 0.0)
        federated[0] += ((sums.gram * weight[:, None, None]).sum(0) / ridge.FEATURE_STEPS**2).numpy()
        federated[1] += ((sums.total * weight[:, None]).T / ridge.FEATURE_STEPS).numpy()
    np.testing.assert_allclose(federated[0], gram, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(federated[1], moment, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(solved(Sums(*federated)), solved(Sums(gram, moment)), atol=1e-9)
