"""Every method's round with a program ends where torch's does; those that cannot be programs are refused in words."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from export.program.exporter import EVALUATION_BATCH, export_program, federation_of
from export.program.host import DeviceExamples, measure
from export.program.parity import (
    ROUNDING_FACTOR,
    RoundParity,
    as_arrays,
    check_round,
    compare_round,
    differences,
    generated_examples,
    outcome_arrays,
    run_both,
)
from export.program.runtime import TrainingProgram
from export.runtime import ProgramError
from federation.methods import METHODS
from federation.plan import Augmentation
from federation.tasks.task import arrays
from federation.training.prediction import measure as measure_with_torch
from federation.training.window_changes import ChannelScale
from tests.edge_agent.factories import make_plan
from tests.export.program.small_federations import EXPORTABLE, loaded, small_federation
from tests.federation.federated import each_step


@pytest.mark.parametrize("name", each_step(EXPORTABLE))
def test_a_round_ends_where_torchs_does(name: str) -> None:
    """Three epochs of 4, 4 and 3 examples: the last batch is masked."""
    federation, program = loaded(name)
    parity = compare_round(federation, program, generated_examples(federation, 11))
    assert parity.steps >= 9
    assert parity.ratio < ROUNDING_FACTOR
    assert parity.scores == parity.torch_scores


NETWORKS = ("har_cnn", "har_cnn_alp", "hart", "hart_alp")
IN_CI = {("fedavg", network) for network in NETWORKS} | {
    (name, NETWORKS[1 + 2 * (i % 2)]) for i, name in enumerate(EXPORTABLE)
}
"""Every network with one method, every method with one network that has its layers; all pairs by hand."""


@pytest.mark.parametrize(
    ("name", "network_name"),
    [
        pytest.param(*pair, marks=pytest.mark.ci if pair in IN_CI else pytest.mark.slow)
        for pair in itertools.product(EXPORTABLE, NETWORKS)
    ],
)
def test_a_round_with_each_network_ends_where_torchs_does(name: str, network_name: str) -> None:
    if METHODS[name].traits.requires_alp and not network_name.endswith("_alp"):
        pytest.skip("the method needs ALP layers")
    federation, program = loaded(name, network_name)
    parity = compare_round(federation, program, generated_examples(federation, 11))
    assert parity.ratio < ROUNDING_FACTOR
    assert parity.scores == parity.torch_scores


@pytest.mark.parametrize("name", ["fedproto", "fedproto_margin"])
def test_features_of_the_last_layer_are_in_the_program(name: str) -> None:
    federation, program = loaded(name, "dense, last layer")
    parity = compare_round(federation, program, generated_examples(federation, 11))
    assert parity.ratio < ROUNDING_FACTOR
    assert parity.scores == parity.torch_scores


@pytest.mark.parametrize("name", ["moon", "scaffold", "fedper", "ditto"])
def test_a_client_goes_on_from_what_an_earlier_round_left(name: str) -> None:
    """The method's memory, or a head that stays, comes from the last round and not from the program."""
    federation, program = loaded(name)
    examples = generated_examples(federation, 11)
    client = run_both(federation, program, examples).torch.client
    pair = run_both(federation, program, examples, client=client, round_number=3)
    apart = differences(outcome_arrays(pair.torch), pair.ours.client | pair.ours.upload)
    anew = run_both(federation, program, examples, round_number=3)
    assert max(apart.values()) < 1e-3
    assert max(differences(outcome_arrays(anew.torch), pair.ours.client | pair.ours.upload).values()) > 1e-3


@pytest.mark.parametrize("steps", [1, 4])
def test_a_straggler_stops_where_torchs_does(steps: int) -> None:
    """Its upload has the sum of the rates of the steps that it took, which SCAFFOLD divides by."""
    federation, program = loaded("scaffold")
    pair = run_both(federation, program, generated_examples(federation, 11), max_steps=steps)
    assert pair.ours.steps == steps
    assert max(differences(outcome_arrays(pair.torch), pair.ours.client | pair.ours.upload).values()) < 1e-4
    assert pair.ours.loss == pytest.approx(float(pair.torch.loss), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({"name": "fedproto", "backbone": "frozen"}, {}),
        ({"name": "fedavg"}, {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.01}),
        ({"name": "fedavg"}, {"optimizer": "sgd"}),
        ({"name": "fedavg"}, {"weight_decay": 0.01}),
        ({"name": "fedrep", "head_lr_factor": 3.0}, {}),
    ],
)
def test_options_that_change_the_step_are_in_the_program(options: dict[str, Any], training: dict[str, Any]) -> None:
    federation = small_federation(options, **training)
    program = TrainingProgram.load(export_program(federation))
    parity = compare_round(federation, program, generated_examples(federation, 11))
    assert parity.ratio < ROUNDING_FACTOR


@pytest.mark.parametrize("scale", [None, ChannelScale((0.1, 9.0, -2.0, 0.0, 0.3, 0.1), (1.0, 2.0, 3.0, 0.5, 0.7, 0.2))])
def test_windows_are_changed_as_with_torch(scale: ChannelScale | None) -> None:
    federation = small_federation("fedavg", "har_cnn", augmentation="rotation=0.6,degrees=50,sensor_loss=0.4")
    federation = federation._replace(setup=replace(federation.setup, channels=scale))
    program = TrainingProgram.load(export_program(federation))
    examples = generated_examples(federation, 11)
    assert compare_round(federation, program, examples).ratio < ROUNDING_FACTOR
    ours = run_both(federation, program, examples).ours
    as_they_are = run_both(*loaded("fedavg", "har_cnn"), examples).ours
    assert max(differences(as_they_are.upload, ours.upload).values()) > 1e-2


def test_images_are_refused_in_words_where_they_would_be_changed() -> None:
    federation = small_federation("fedavg", "har_cnn")
    training = federation.setup.training.model_copy(update={"augmentation": Augmentation(flip=0.5)})
    federation = federation._replace(setup=replace(federation.setup, training=training))
    with pytest.raises(ProgramError, match="changes images"):
        export_program(federation)


def test_windows_of_units_of_their_own_are_refused_in_words_where_they_would_be_changed() -> None:
    plan = make_plan()
    training = plan.training.model_copy(update={"augmentation": Augmentation(rotation=0.5)})
    assert plan.data.normalization == "client"
    with pytest.raises(ProgramError, match="'client' gives each client its own units"):
        federation_of(plan.model_copy(update={"training": training}))


def test_a_number_is_learnt_too() -> None:
    federation = small_federation("fedavg", task="regression")
    parity = check_round(
        federation, TrainingProgram.load(export_program(federation)), generated_examples(federation, 11)
    )
    assert parity.scores == pytest.approx(dict(parity.torch_scores), rel=1e-3)


def test_the_rate_of_a_later_round_is_the_schedules() -> None:
    federation = small_federation("fedavg", lr_schedule="polynomial")
    program = TrainingProgram.load(export_program(federation))
    pair = run_both(federation, program, generated_examples(federation, 11), round_number=4)
    assert max(differences(outcome_arrays(pair.torch), pair.ours.client | pair.ours.upload).values()) < 1e-3


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(EXPORTABLE)))
def test_what_cannot_be_a_program_is_refused_in_words(name: str) -> None:
    federation = small_federation("fedavg")
    setup = type(federation.setup)(**{**vars(federation.setup), "method": METHODS[name]()})
    with pytest.raises(ProgramError, match=name):
        export_program(federation._replace(setup=setup))


@pytest.mark.parametrize("network_name", ["dense", pytest.param("hart_alp", marks=pytest.mark.ci)])
def test_the_gate_sees_a_learning_rate_that_is_off_by_a_hundredth(network_name: str) -> None:
    """And so anything else that is wrong by as much: the gate is not so wide that all pass."""
    federation, program = loaded("fedavg", network_name)
    wrong = program.manifest.training.model_copy(update={"lr": federation.setup.training.lr * 1.01})
    program.manifest = program.manifest.model_copy(update={"training": wrong})
    with pytest.raises(ProgramError, match="rounding"):
        check_round(federation, program, generated_examples(federation, 11))


@pytest.mark.ci
def test_where_alp_layers_meet_a_tie_two_other_rounds_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    def tied(*given: Any) -> RoundParity:
        found, is_second = compare_round(*given), len(given) == 4
        return found._replace(ratio=7223.0) if is_second else found

    monkeypatch.setattr("export.program.parity.compare_round", tied)
    federation, program = loaded("fedavg", "hart_alp")
    assert check_round(federation, program, generated_examples(federation, 11)).ratio < ROUNDING_FACTOR
    federation, program = loaded("fedavg")  # without a choice there is no tie
    with pytest.raises(ProgramError, match="7223 times as far"):
        check_round(federation, program, generated_examples(federation, 11))


@pytest.mark.parametrize("network_name", ["dense", "hart_alp"])
def test_scores_are_torchs_over_several_batches(network_name: str) -> None:
    federation, program = loaded("fedavg", network_name)
    examples = generated_examples(federation, EVALUATION_BATCH + 3)
    found = measure_with_torch(federation.setup, federation.initial, examples, EVALUATION_BATCH)
    mine = DeviceExamples(examples.x.numpy(), examples.y.numpy())
    ours = measure(program, as_arrays({"client": federation.initial}), mine)
    assert {name: value.tolist() for name, value in ours.items()} == {n: v.tolist() for n, v in arrays(found).items()}
