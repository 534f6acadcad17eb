"""The state machine: to which rounds, of which instance, and with which network a device goes."""

from __future__ import annotations

import pytest

from edge_agent.machine.commands import Collect, Exit, FetchBlob, Log, Reset, StopJob
from edge_agent.machine.events import Announced, Invited
from federation.plan import ModelSpec, Plan
from federation.protocol.messages import Invitation
from tests.edge_agent.factories import announcement, invitation, make_plan, pointer
from tests.edge_agent.state_machine import Device, ready, training, uploading


def test_without_an_invitation_nothing_happens() -> None:
    device = ready().on(Announced(announcement(1)))
    assert not device.asked(FetchBlob)
    assert device.on(Invited(invitation(1))).asked(FetchBlob)


def test_an_invitation_may_come_before_its_round_is_announced_and_says_what_to_train_from() -> None:
    device = ready().on(Invited(invitation(1, "b")))
    assert not device.asked(FetchBlob)
    assert device.on(Announced(announcement(1, model="a"))).asked(FetchBlob) == [FetchBlob(pointer("b"))]
    device.on(Invited(invitation(2, "c")))
    assert not device.asked(FetchBlob)
    assert device.agent.work is not None  # round 1 goes on until round 2 is announced
    assert device.on(Announced(announcement(2))).asked(FetchBlob) == [FetchBlob(pointer("c"))]


@pytest.mark.parametrize("stale", [invitation(2), invitation(1, instance="1" * 32)])
def test_an_invitation_to_another_round_or_another_founding_is_none(stale: Invitation) -> None:
    assert not ready().on(Invited(stale), Announced(announcement(1))).asked(FetchBlob)


def test_another_broadcast_for_the_same_round_replaces_the_first() -> None:
    device = training().on(Invited(invitation(1, "b")))
    assert device.asked(StopJob)
    assert device.asked(FetchBlob) == [FetchBlob(pointer("b"))]


def test_a_federation_founded_anew_makes_the_device_forget_and_collect_anew() -> None:
    device = uploading().on(Announced(announcement(1, instance="1" * 32)))  # the same plan, seed and round
    assert device.asked(StopJob)
    assert device.asked(Reset)
    assert device.asked(Collect)
    assert device.agent.outbox == ()
    assert device.agent.done == frozenset()


MIXED = make_plan("fedproto", alternatives=(ModelSpec(name="hart"),))


def test_a_device_that_runs_another_network_is_another_identity() -> None:
    plain, other = (Device(model=model).on(Announced(announcement(1, plan=MIXED))) for model in (None, "hart"))
    assert plain.asked(Reset)[0].identity != other.asked(Reset)[0].identity
    named = Device(plain.agent, model="har_cnn").on(Announced(announcement(1, plan=MIXED)))
    assert not named.asked(Reset)  # the plan's own network by its name


@pytest.mark.parametrize(
    ("plan", "words"), [(make_plan(), "every device runs 'har_cnn'; leave it out"), (MIXED, "offers 'har_cnn', 'hart'")]
)
def test_a_network_that_the_federation_does_not_offer_ends_the_program_and_forgets_nothing(
    plan: Plan, words: str
) -> None:
    device = Device(uploading().agent, model="resnet").on(Announced(announcement(1, plan=plan)))
    assert device.asked(Exit) == [Exit(1)]
    assert "[agent] model is 'resnet'" in device.asked(Log)[0].text
    assert words in device.asked(Log)[0].text
    assert not device.asked(Reset)
