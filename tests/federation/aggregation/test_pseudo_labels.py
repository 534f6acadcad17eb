"""A head that counts a device's windows as what the shared head names them: an oracle, and when there is none."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from federation.aggregation.pseudo_labels import MIN_WINDOWS, WEIGHT, pseudo_labelled_head, surest
from federation.aggregation.ridge_numpy import SUM_STEPS, FixedSums, RidgeOptions, sums_of, travelling

CLASSES, WIDTH, CLIENTS = 3, 12, 4
COLUMNS = tuple(range(6))
OPTIONS = RidgeOptions()


class World(NamedTuple):
    """Everybody's sums, and a new person's windows (n, WIDTH) with what they are (n,)."""

    shared: FixedSums
    features: Any
    truth: Any


def world(seed: int = 0, count: int = 240, moved: float = 0.7) -> World:
    """Three activities that both halves of the features tell; the new person's lie `moved` to one side."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(CLASSES, WIDTH)) * 1.5

    def drawn(number: int, by: float) -> tuple[Any, Any]:
        y = random.integers(0, CLASSES, number)
        return (centres[y] + random.normal(size=(number, WIDTH)) * 0.8 + by).astype(np.float32), y

    parts = [travelling(sums_of(*drawn(150, 0.0), CLASSES, OPTIONS.clip)) for _ in range(CLIENTS)]
    shared = FixedSums(*(sum(each.astype(np.int64) for each in each_of) for each_of in zip(*parts, strict=True)))
    return World(shared, *drawn(count, moved))


def head_of(given: World, **changes: Any) -> Any:
    told = {"clients": CLIENTS, "options": OPTIONS, "columns": COLUMNS, "is_far": False, **changes}
    return pseudo_labelled_head(given.shared, features=given.features, **told)


def test_it_is_the_ridge_solution_with_the_surer_half_as_the_shared_head_names_them() -> None:
    """Written out in float64, without fixed point: the normal equations of everybody's windows and these."""
    given = world()
    size = WIDTH + 1
    gram = np.zeros((size, size))
    gram[np.triu_indices(size)] = given.shared.gram / SUM_STEPS
    gram, moment = np.triu(gram) + np.triu(gram, 1).T, given.shared.moment / SUM_STEPS

    def solution(g: Any, b: Any, used: Any) -> Any:
        found = np.zeros_like(b)
        part = g[np.ix_(used, used)]
        damped = part + OPTIONS.ridge * np.trace(part) / len(part) * np.eye(len(part))
        found[used] = np.linalg.inv(damped) @ b[used]
        return found

    share, free = OPTIONS.orientation_free_share, [*COLUMNS, WIDTH]

    def mean_of(g: Any, b: Any) -> Any:
        return (1 - share) * solution(g, b, np.arange(size)) + share * solution(g, b, free)

    a = np.concatenate([np.clip(given.features.astype(float), -4, 4), np.ones((len(given.features), 1))], 1)
    scores = a @ mean_of(gram, moment)
    names, ordered = scores.argmax(1), np.sort(scores, 1)
    margin = ordered[:, -1] - ordered[:, -2]
    own_gram, own_moment = np.zeros_like(gram), np.zeros_like(moment)
    for name in range(CLASSES):
        rows = np.flatnonzero(names == name)
        best = sorted(rows, key=lambda row: -margin[row])[: len(rows) // 2]
        own_gram += a[best].T @ a[best] / len(best) ** 0.5
        own_moment[:, name] += a[best].sum(0) / len(best) ** 0.5
    wanted = mean_of(gram + WEIGHT * CLIENTS * own_gram, moment + WEIGHT * CLIENTS * own_moment)
    head = head_of(given)
    assert head.weight == pytest.approx(wanted[:-1].T, abs=2e-4)
    assert head.bias == pytest.approx(wanted[-1], abs=2e-4)


def test_a_device_takes_it_only_where_it_can_see_that_the_names_are_likely_right() -> None:
    given = world()
    assert head_of(given) is not None
    assert head_of(given, is_far=True) is None
    assert head_of(given._replace(features=given.features[: MIN_WINDOWS - 1])) is None
    assert head_of(given, columns=()) is None
    assert head_of(given, clients=0) is None
    assert head_of(given, options=OPTIONS._replace(orientation_free_share=0.0)) is None
    without_sense = np.random.default_rng(1).permuted(given.features, axis=0)  # each feature of another window
    assert head_of(given._replace(features=without_sense)) is None, "the two views name such windows each in its way"


def test_the_surer_half_of_each_class_and_of_equals_the_earlier() -> None:
    scores = np.array([[0.9, 0.1], [0.8, 0.2], [0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    kept, names = surest(scores)
    assert names.tolist() == [0, 0, 0, 0, 1]
    assert kept.tolist() == [0, 1, 4]  # two of four, and at least one


def test_the_method_gives_the_same_head_by_torch() -> None:
    from federation.methods.analytic import ORIENTATION_FREE, Analytic
    from federation.records import Client

    given = world()
    free = torch.zeros(WIDTH)
    free[list(COLUMNS)] = 1
    params = {"head.weight": torch.zeros(CLASSES, WIDTH), "head.bias": torch.zeros(CLASSES)}
    client = Client(params=params, buffers={ORIENTATION_FREE: free}, memory={"solved": torch.zeros(())})
    sums = {name: torch.from_numpy(value) for name, value in given.shared._asdict().items()}
    broadcast = {"sums": {**sums, "clients": torch.tensor(CLIENTS)}}
    features = torch.from_numpy(given.features)
    adapted = Analytic().adapted_model(client, broadcast, features, is_far=False)
    assert adapted is not None
    assert adapted.params["head.weight"].numpy() == pytest.approx(head_of(given).weight, abs=1e-6)
    assert Analytic(floor=1.0).adapted_model(client, broadcast, features, is_far=False) is None
    assert Analytic().adapted_model(client, broadcast, features, is_far=True) is None
