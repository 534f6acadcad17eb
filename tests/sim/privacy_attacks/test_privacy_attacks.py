"""Attacks that must succeed on a planted secret, and find nothing where there is nothing or where it is not theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from federation.records import Examples
from federation.records.tree import flatten
from sim.cli.app import app
from sim.data.federated_data import ClientData, FederatedData
from sim.errors import AnalysisError, SettingsError
from sim.privacy_attacks import AttackOptions, AttackResults, attack, label_recovery
from sim.privacy_attacks.batch_labels import solved
from sim.privacy_attacks.label_recovery import fitted
from sim.privacy_attacks.observation import AttackOutcome, Disguise, Setting, auc, mean_of, observe, random_groups
from sim.reports.analysis.finished import silent
from sim.results.run_directory import CHECKPOINT
from sim.rounds import checkpoint
from sim.run import build_simulation, resolve
from tests.sim.small_runs import settings_for

CLASSES, DEVICES = 4, 8


@pytest.fixture(scope="module")
def planted() -> FederatedData:
    """Devices of which each does one activity most, in windows that are a constant of the activity and some noise."""
    draw = np.random.default_rng(5)
    clients = {}
    for number in range(DEVICES):
        shares = np.full(CLASSES, 0.1)
        shares[number % CLASSES] = 0.7
        y = draw.choice(CLASSES, 40, p=shares)
        x = draw.normal(0, 0.3, (40, 128, 6)) + 2 * (np.arange(6) == y[:, None])[:, None, :]
        both = Examples(torch.from_numpy(x).float(), torch.from_numpy(y))
        clients[f"d{number}"] = ClientData(Examples(both.x[:30], both.y[:30]), Examples(both.x[30:], both.y[30:]))
    return FederatedData(tuple("abcd"), clients, {}, False)


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    """Train half as many made-up devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_recovery, "MADE_UP", 12)
        patch.setattr(label_recovery, "REFINEMENTS", 1)
        yield


def attacked(data: FederatedData, method: str, *only: str, **options: object) -> AttackResults:
    model = "har_features" if method == "analytic" else "har_cnn"
    more = ["model.cosines=0"] if method == "analytic" else []
    settings = settings_for(method, model=model, batch=8, set=[*more, *options.pop("set", [])], lr=1e-2)
    size = settings.training.model_copy(update={"classes": CLASSES})
    settings = settings.model_copy(update={"training": size, "labels": tuple("abcd")})
    return attack(settings, data, None, AttackOptions(only=only, inversion_steps=30, **options), silent)


def shuffled(data: FederatedData) -> FederatedData:
    """Deal all windows anew: no device differs from the others by more than chance."""
    x, y = (torch.cat([getattr(client.train, name) for client in data.clients.values()]) for name in "xy")
    order = torch.from_numpy(np.random.default_rng(6).permutation(len(y))).view(DEVICES, -1)
    dealt = {
        name: ClientData(Examples(x[rows], y[rows]), data.clients[name].test)
        for name, rows in zip(data.clients, order, strict=True)
    }
    return FederatedData(data.labels, dealt, {}, False)


def test_planted_activities_are_read_and_are_chance_in_a_sum(planted: FederatedData) -> None:
    found = attacked(planted, "fedavg", "batch_labels", "labels").attacks
    for name, least in (("batch_labels", 0.9), ("labels", 0.75)):
        outcomes = found[name].outcomes
        assert outcomes["clear"].score.mean > least
        assert outcomes["clear"].advantage.low > 0.1
        for key in ("sum_all", "both"):
            assert outcomes[key].advantage.mean == pytest.approx(0, abs=1e-6)  # the sum is the federation's average
        assert outcomes["noise"].advantage.mean < outcomes["clear"].advantage.mean / 2


@pytest.mark.ci
def test_shuffled_windows_leave_little_to_find(planted: FederatedData) -> None:
    found = attacked(planted, "fedavg", "labels").attacks["labels"].outcomes["clear"]
    shuffled_too = attacked(shuffled(planted), "fedavg", "labels").attacks["labels"].outcomes["clear"]
    assert found.advantage.low > 0.1
    assert shuffled_too.advantage.low < 0.05  # the draw alone makes devices differ a little


def test_analytic_sums_say_all_in_clear_and_nothing_of_one_device_in_a_sum_of_all(planted: FederatedData) -> None:
    found = attacked(planted, "analytic", "labels", "features", "membership")
    assert found.attacks["labels"].outcomes["clear"].score.mean == pytest.approx(1, abs=1e-3)
    features = found.attacks["features"].outcomes
    assert features["clear"].score.mean == pytest.approx(1, abs=1e-6)
    assert features["clear"].facts["fewer_windows_than_features"] == DEVICES  # 30 windows, 184 numbers
    assert abs(features["sum_all"].score.mean) < 1e-9
    assert abs(features["both"].score.mean) < 0.1
    # 30 windows span what no other window lies in
    assert found.attacks["membership"].outcomes["clear"].score.mean == 1
    assert found.missing == {}


def test_prototypes_and_their_counts_are_read_as_they_are(planted: FederatedData) -> None:
    found = attacked(planted, "fedproto", "labels", "features", "inversion", set=["average_over=round"])
    assert found.attacks["labels"].outcomes["clear"].score.mean == pytest.approx(1)
    assert found.attacks["features"].outcomes["clear"].score.mean == pytest.approx(1)
    assert "sends no parameters" in found.missing["inversion"]


def test_a_method_without_sums_is_attacked_in_clear_alone(planted: FederatedData) -> None:
    found = attacked(planted, "fedproto", "features", set=["average_over=clients"])
    assert found.refusal
    assert "average_over=round" in found.refusal
    assert {setting.key for setting in found.settings} == {"clear", "noise"}


def test_a_window_is_read_off_a_linear_first_layer() -> None:
    from sim.privacy_attacks.inversion import by_quotient, nearest

    x, deltas = torch.randn(5, generator=torch.Generator().manual_seed(1)), torch.tensor([0.5, -2.0, 0.0])
    made = by_quotient({"w": deltas[:, None] * x, "b": deltas}, ("w", "b"))
    assert torch.allclose(made[0], x)
    assert nearest(made, x)[0] == pytest.approx(1)


@pytest.mark.slow
def test_a_window_is_made_anew_from_its_gradient(planted: FederatedData) -> None:
    outcomes = attacked(planted, "fedavg", "inversion").attacks["inversion"].outcomes
    assert outcomes["clear"].score.mean > outcomes["noise"].score.mean


def test_the_equations_of_the_bias_give_the_shares_back() -> None:
    expected = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]])
    average, true = np.full(3, 1 / 3), np.array([0.7, 0.2, 0.1])
    difference = (true - average) @ (expected - np.eye(3))
    assert np.allclose(solved(difference, expected, average), true)
    assert np.allclose(solved(difference, expected, average, deviation=10.0), average)  # nothing is believed


def test_a_regression_of_noise_reads_nothing() -> None:
    draw = np.random.default_rng(0)
    shares = draw.dirichlet(np.ones(3), 40)
    signal, noise = shares @ draw.normal(size=(3, 6)), draw.normal(size=(40, 6))
    row = signal[0] - signal.mean(0)
    assert np.allclose(fitted(signal, shares)(row), shares[0] - shares.mean(0), atol=1e-2)
    assert np.abs(fitted(noise, shares)(noise[0] - noise.mean(0))).max() < 0.15


def test_groups_are_dealt_once_and_none_is_too_small() -> None:
    groups = random_groups([str(n) for n in range(11)], 3, 0)
    assert sorted(name for group in groups for name in group) == sorted(str(n) for n in range(11))
    assert sorted(map(len, groups)) == [3, 3, 5]


def test_noise_is_as_much_as_it_says_and_clips_to_the_median() -> None:
    draw = np.random.default_rng(0)
    vectors = {str(n): np.rint(draw.normal(0, 1e6 * (n + 1), 4000)) for n in range(5)}
    hidden = np.ones(4000, bool)
    hidden[0] = False
    setting = Setting("noise", "noise", 1, 0.5)
    disguise = Disguise.of(setting, vectors, hidden, noisy=4)
    assert disguise is not None
    assert disguise.bound == pytest.approx(np.linalg.norm(vectors["2"][1:]))
    assert disguise.deviation == pytest.approx(0.5 * disguise.bound / 2)
    seen = observe(vectors, setting, disguise, seed=0)
    assert seen["0"].total[0] == vectors["0"][0]
    assert np.std(seen["0"].total[1:] - vectors["0"][1:]) == pytest.approx(disguise.deviation, rel=0.05)


def test_intervals_and_auc_are_those_worked_out_by_hand() -> None:
    assert auc(np.array([3.0, 1.0]), np.array([2.0, 1.0])) == 0.625  # 3 beats both, 1 ties once
    estimate = mean_of([0.0, 1.0] * 50)
    assert estimate.mean == 0.5
    assert estimate.low == pytest.approx(0.5 - 1.96 * 0.05, abs=0.02)  # √(p (1 − p) / n) = 0.05
    assert AttackOutcome({"a": 0.5, "b": 0.7}, {"a": 0.5, "b": 0.7}).is_chance
    assert AttackOutcome({"a": 0.5 + 1e-16, "b": 0.7 + 2e-16}, {"a": 0.5, "b": 0.7}).is_chance


def test_options_that_nothing_is_tried_of_are_refused_in_words(planted: FederatedData) -> None:
    with pytest.raises(SettingsError, match="--only windows: expected labels"):
        AttackOptions(only=("windows",))
    with pytest.raises(SettingsError, match="half of them collude with the server"):
        AttackOptions(devices=3)
    few = FederatedData(planted.labels, dict(list(planted.clients.items())[:3]), {}, False)
    with pytest.raises(AnalysisError, match="3 devices have training examples"):
        attacked(few, "analytic")


def test_a_state_that_is_not_finite_is_refused_by_its_file_and_tensor(planted: FederatedData, tmp_path: Path) -> None:
    settings = settings_for("analytic", model="har_features", set=["model.cosines=0"])
    size = settings.training.model_copy(update={"classes": CLASSES})
    settings = settings.model_copy(update={"training": size, "labels": tuple("abcd")})
    simulation = build_simulation(resolve(settings), planted)
    for _record in simulation.run_rounds():
        pass
    saved = simulation.checkpoint()
    name, weights = next(iter(flatten(saved.state["params"]).items()))
    weights.view(-1)[0] = torch.nan
    checkpoint.save(tmp_path / CHECKPOINT, saved)
    options = AttackOptions("end", ("labels",))
    with pytest.raises(AnalysisError, match=rf"not finite \(params/{name}; .*checkpoint.bin, round \d\): the run"):
        attack(settings, planted, tmp_path, options, silent)
    weights.view(-1)[0] = 0.0
    checkpoint.save(tmp_path / CHECKPOINT, saved)
    assert attack(settings, planted, tmp_path, options, silent).facts["round"] == saved.round_number + 1


@pytest.mark.ci
def test_the_command_attacks_a_run_and_a_plan(tmp_path: Path) -> None:
    small = ["--data", "synthetic", "--model", "har_features", "--method", "analytic", "--rounds", "1"]
    sets = ["model.cosines=0", "data.subjects=4", "data.phones=1", "data.places=1", "data.minutes=3"]
    given = [*small, *(word for text in sets for word in ("--set", text)), "--cache", str(tmp_path / "cache")]
    run = tmp_path / "run"
    assert CliRunner().invoke(app, ["run", *given, "--out", str(run)]).exit_code == 0
    ran = CliRunner().invoke(app, ["attack", str(run), "--cache", str(tmp_path / "cache"), "--json"])
    assert ran.exit_code == 0, ran.output
    values = json.loads((run / "attack" / "attack.json").read_text())
    assert values["attacks"]["labels"]["settings"]["clear"]["score"]["mean"] > 0.99
    assert "<h1>What the server could learn: analytic" in (run / "attack" / "attack.html").read_text()
    refused = CliRunner().invoke(app, ["attack", str(run / "plan.json")])
    assert refused.exit_code == 2
    assert "--data" in refused.output
