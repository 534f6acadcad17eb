"""Simulated rounds whose updates are summed by the real protocol: the clear one's numbers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from federation.privacy.accounting import epsilon_of_discrete
from federation.records.tree import flatten
from gaitway.errors import GaitwayError
from sim.attacks import Attack
from sim.data.federated_data import FederatedData
from sim.rounds.simulation import Simulation
from sim.run import build_simulation, load_data, resolve
from tests.sim.small_runs import settings_for

FOUR = ["data.subjects=4", "data.phones=1", "data.places=1", "data.minutes=3"]
ONE_STEP = {name: ["clustering=one_step"] for name in ("fedali", "fesem")}


def settings(method: str, mode: str, **options: object):
    more = [*options.pop("people", FOUR), *ONE_STEP.get(method, []), *options.pop("set", [])]
    return settings_for(method, secure=mode, batch=16, **options, set=more)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FederatedData:
    return load_data(resolve(settings("fedavg", "off")), None, tmp_path_factory.mktemp("cache"), None)


def same_state(one: Simulation, other: Simulation) -> bool:
    mine, theirs = flatten(one.state), flatten(other.state)
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in mine.items())


@pytest.mark.parametrize("method", [
    pytest.param(name, marks=() if name in ("fedavg", "analytic", "fedproto") else pytest.mark.ci)
    for name in ("fedavg", "analytic", "fedproto", "fedpr", "fedali", "fesem", "scaffold", "ditto")
])  # fmt: skip
def test_masked_sums_are_those_in_the_clear_bit_for_bit(method: str, data: FederatedData) -> None:
    """Over two rounds, with a client of four lost in each."""
    masked, clear = (
        build_simulation(resolve(settings(method, mode, stragglers=0.25)), data) for mode in ("masked", "clear")
    )
    for record, other in zip(masked.run_rounds(), clear.run_rounds(), strict=True):
        assert "failed" not in record
        assert len(record["lost"]) == (0 if method == "analytic" else 1), "who does not train cannot be slow"
        assert record["personalization"] == other["personalization"]
        assert record["secure"]["threshold"] == 2
        assert record["bytes_up"] > 4 * record["secure"]["numbers"], "what the protocol sends is counted"
        assert same_state(masked, clear)


TWELVE = ["data.subjects=6", "data.phones=2", "data.places=1", "data.minutes=1"]
NOISE = ["secure.steps=65536", "secure.max_weight=1", "secure.clip_norm=40000", "secure.noise_multiplier=1.5"]
GROUPS = ["secure.groups=4", "aggregation=median"]


def test_groups_of_devices_have_a_sum_each_and_their_median_is_the_model(tmp_path: Path) -> None:
    """Bit for bit in masks and in the clear; of one group the sum is that of all; whom one client cannot move."""
    given = [settings("fedavg", mode, rounds=2, people=TWELVE, set=GROUPS) for mode in ("masked", "clear")]
    crowd = load_data(resolve(given[0]), None, tmp_path, None)
    assert len(crowd.clients) == 12
    masked, clear = (build_simulation(resolve(one), crowd) for one in given)
    for record, other in zip(masked.run_rounds(), clear.run_rounds(), strict=True):
        assert "failed" not in record
        assert record["personalization"] == other["personalization"]
        assert record["secure"]["numbers"] * 4 * 4 < record["bytes_up"] < record["secure"]["numbers"] * 4 * 4 + 20_000
        assert same_state(masked, clear)
    moved = {}
    for rule in ("median", "mean"):
        ways = [] if rule == "mean" else GROUPS
        attacked = build_simulation(resolve(settings("fedavg", "clear", rounds=1, people=TWELVE, set=ways)), crowd)
        attacked.attack = Attack("noise", frozenset([min(crowd.clients)]))
        start = flatten(attacked.state)
        next(attacked.run_rounds())
        moved[rule] = max(float((value - start[name]).abs().max()) for name, value in flatten(attacked.state).items())
    # noise of a thousand times an honest change's norm, cut off at 4: a third of that in the mean
    assert moved["median"] < 0.1 < 0.3 < moved["mean"]


@pytest.mark.ci
def test_each_group_has_the_noise_of_a_sum(tmp_path: Path) -> None:
    """Of a group of three one may be lost and one work for the server: one is counted on, and not six of twelve."""
    given = settings("fedavg", "clear", rounds=1, people=TWELVE, set=[*GROUPS, *NOISE])
    record = next(build_simulation(resolve(given), load_data(resolve(given), None, tmp_path, None)).run_rounds())
    assert record["secure"]["noisy_clients"] == 1


@pytest.mark.ci
def test_a_group_of_which_too_few_are_left_ends_the_sum(tmp_path: Path) -> None:
    given = settings("fedavg", "masked", rounds=1, stragglers=0.1, people=TWELVE, set=GROUPS)
    crowd = load_data(resolve(given), None, tmp_path, None)
    record = next(build_simulation(resolve(given), crowd).run_rounds())
    assert len(record["lost"]) == 1, "the sum of all others would be of eleven, which is enough"
    assert "a group's sum would have 2 devices; 3 are needed" in record["failed"]


def test_clients_add_noise_to_the_sum_and_its_account_grows(data: FederatedData) -> None:
    masked, clear = (
        build_simulation(resolve(settings("fedavg", mode, set=NOISE)), data) for mode in ("masked", "clear")
    )
    quiet = build_simulation(
        resolve(settings("fedavg", "clear", set=[*NOISE[:3], "secure.noise_multiplier=1e-3"])), data
    )
    last = next(quiet.run_rounds())
    for number, (record, other) in enumerate(zip(masked.run_rounds(), clear.run_rounds(), strict=True), 1):
        assert record["privacy"] == other["privacy"]
        assert record["privacy"]["most_rounds"] == number
        assert record["privacy"]["epsilon"] == pytest.approx(epsilon_of_discrete(number / 1.5**2, 1e-5), abs=1e-4)
        assert same_state(masked, clear)
        if number == 1:
            assert last["privacy"]["epsilon"] > 1e5
            apart = torch.cat(
                [
                    (value - flatten(quiet.state)[name]).double().flatten()
                    for name, value in flatten(clear.state).items()
                ]
            )
            # of four clients one may be lost and one work for the server: two have the sum's deviation
            wanted = 1.5 * 40_000 / 65_536 * (4 / 2) ** 0.5 / 4
            assert float(apart.std()) == pytest.approx(wanted, rel=0.1)
    begun = build_simulation(resolve(settings("fedavg", "clear", set=NOISE)), data)
    next(begun.run_rounds())
    resumed = build_simulation(resolve(settings("fedavg", "clear", set=NOISE)), data)
    resumed.restore(begun.checkpoint())
    assert [record["privacy"]["most_rounds"] for record in resumed.run_rounds()] == [2]


def test_fixed_point_is_near_floating_point(data: FederatedData) -> None:
    plain, secure = (
        build_simulation(
            resolve(
                settings("fedavg", mode, rounds=1, set=["rounds.norm_factor=null", "rounds.max_weight_ratio=null"])
            ),
            data,
        )
        for mode in ("off", "masked")
    )
    for simulation in (plain, secure):
        list(simulation.run_rounds())
    for name, value in flatten(plain.state).items():
        # half a step of 1/1024 for each client, divided by the clients' mean number of examples
        torch.testing.assert_close(flatten(secure.state)[name], value, atol=2e-5, rtol=1e-5)


def test_too_few_clients_fail_the_round_and_leave_the_state(data: FederatedData) -> None:
    simulation = build_simulation(resolve(settings("fedavg", "masked", stragglers=0.5, rounds=1)), data)
    before = simulation.state
    record = next(simulation.run_rounds())
    assert "2 of 4 members have sent their vectors, 3 are needed" in record["failed"]
    assert simulation.state is before


@pytest.mark.parametrize(("options", "words"), [
    ({"method": "fedavg", "set": ["secure.groups=2"]}, "the mean of the groups is the mean of all"),
    ({"method": "fedavg", "set": ["secure.groups=2", "aggregation=median"]}, "in each of 2 groups"),
    ({"method": "analytic", "set": ["secure.groups=2"]}, "leave it at 1"),
    ({"method": "fedavg", "set": NOISE[:1] + NOISE[2:]}, "set secure.max_weight=1"),
    ({"method": "fedproto", "set": NOISE}, "more than a mean of parameters"),
    ({"method": "fedatt"}, "how far its own parameters went"),
    ({"method": "fedavg", "precision": "int8"}, "set --precision lossless"),
    ({"method": "fedavg", "clients_per_round": 2}, "a sum 3 at least"),
    ({"method": "fedavg", "set": ["rounds.norm_factor=10"]}, "rounds.norm_factor=null"),
    ({"method": "fedavg", "set": ["aggregation=median"]}, "needs every client's parameters"),
])  # fmt: skip
def test_what_must_see_single_updates_is_refused_before_the_first_round(
    options: dict, words: str, data: FederatedData
) -> None:
    given = dict(options)
    with pytest.raises(GaitwayError, match=words):
        build_simulation(resolve(settings(given.pop("method"), "masked", **given)), data)
