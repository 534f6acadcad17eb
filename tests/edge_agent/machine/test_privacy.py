"""A device requires what it was promised: whatever its server announces, less is refused, and nothing leaves."""

from __future__ import annotations

from typing import Any

import pytest

from edge_agent.machine.commands import (
    AnswerSum,
    FetchBlob,
    KeepPrivacyPin,
    NoteRefusedPlan,
    PublishStatus,
    SendBegin,
    SendChunks,
    StartJob,
    StopJob,
)
from edge_agent.machine.events import (
    Announced,
    BlobFetched,
    Connected,
    DataReady,
    Disconnected,
    Invited,
    PrivacyPinRead,
    Tick,
    TrainingFinished,
)
from edge_agent.machine.state import UNANNOUNCED_S, Agent
from federation.plan import Plan, SecureSettings
from federation.privacy.promises import PrivacyPromises, promises_of, required, shortfall
from federation.protocol.messages import PlanRefusal, SumOrder, read
from tests.edge_agent.factories import announcement, invitation, make_plan
from tests.edge_agent.state_machine import A, Device, answer

LEAVING = (FetchBlob, StartJob, SendBegin, SendChunks, AnswerSum)
PROMISED = SecureSettings(
    mode="masked", min_devices=5, colluding_share=0.3, clip_norm=100.0, noise_multiplier=1.1, max_weight=1
)
LOOSER = {
    "mode": PROMISED.model_copy(update={"mode": "off"}),
    "simulated": PROMISED.model_copy(update={"mode": "clear"}),
    "min_devices": PROMISED.model_copy(update={"min_devices": 4}),
    "colluding_share": PROMISED.model_copy(update={"colluding_share": 0.2}),
    "noise_multiplier": PROMISED.model_copy(update={"noise_multiplier": 1.0}),
    "clip_norm": PROMISED.model_copy(update={"clip_norm": None}),
}


def plan_with(secure: SecureSettings = PROMISED, **training: Any) -> Plan:
    plan = make_plan()
    return plan.model_copy(update={"secure": secure, "training": plan.training.model_copy(update=training)})


def enrolled(**policy: Any) -> Device:
    """A device that has pinned what its server promised, and waits."""
    waiting = announcement(0, "waiting", None, plan=plan_with())
    return Device(pins=True, **policy).on(Connected(), Announced(waiting), DataReady(40))


def invited(device: Device, plan: Plan, **fields: Any) -> Device:
    return device.on(Invited(invitation(1)), Announced(announcement(1, plan=plan, **fields)))


def nothing_left(device: Device) -> bool:
    return not [command for command in device.last if isinstance(command, LEAVING)]


def test_the_first_plan_is_pinned_and_one_that_promises_as_much_is_followed() -> None:
    device = Device(pins=True)
    device.on(Connected(), Announced(announcement(0, "waiting", None, plan=plan_with())), DataReady(40))
    assert [command.promises for command in device.asked(KeepPrivacyPin)] == [
        PrivacyPromises(mode="masked", min_devices=5, min_colluding_share=0.3, min_noise=1.1, min_example_noise=0.0)
    ]
    assert invited(device, plan_with()).asked(FetchBlob)
    assert not device.asked(KeepPrivacyPin)


@pytest.mark.parametrize("name", LOOSER)
@pytest.mark.parametrize("instance", ["0" * 32, "1" * 32])
def test_a_plan_that_promises_less_is_refused_also_by_a_federation_made_anew(name: str, instance: str) -> None:
    device = invited(enrolled(), plan_with(LOOSER[name]), instance=instance)
    assert nothing_left(device)
    (status,) = [command.status for command in device.asked(PublishStatus)]
    refusal = read(PlanRefusal, status.refusal.encode())
    assert (refusal.instance, status.state) == (instance, "collecting")
    assert refusal.reason
    assert refusal.reason in status.detail
    assert [command.reason for command in device.asked(NoteRefusedPlan)] == [refusal.reason]
    assert nothing_left(device.on(Tick(), Invited(invitation(1, instance=instance)), Disconnected(), Connected()))
    assert invited(device, plan_with()).asked(FetchBlob), "it takes part again by itself"
    assert not device.asked(PublishStatus)[-1].status.refusal


def test_noise_on_training_steps_is_pinned_too() -> None:
    noisy = plan_with(SecureSettings(), example_clip_norm=1.0, example_noise_multiplier=0.8)
    device = Device(pins=True).on(Connected(), Announced(announcement(0, "waiting", None, plan=noisy)), DataReady(40))
    less = plan_with(SecureSettings(), example_clip_norm=1.0, example_noise_multiplier=0.7)
    assert nothing_left(invited(device, less))
    assert nothing_left(invited(device, plan_with(SecureSettings(), example_noise_multiplier=0.8)))
    assert invited(device, noisy).asked(FetchBlob)


def test_training_stops_and_what_waits_stays_while_the_plan_is_refused() -> None:
    device = invited(enrolled(), plan_with()).on(BlobFetched(A))
    assert invited(device, plan_with(LOOSER["mode"])).asked(StopJob)
    trained = invited(enrolled(), plan_with()).on(BlobFetched(A), TrainingFinished(1, "m1-keys-d1-0", {}))
    assert trained.asked(SendBegin)
    invited(trained, plan_with(LOOSER["noise_multiplier"]))
    assert nothing_left(trained.on(answer("send", "m1-keys-d1-0"), Tick(), at=100.0))
    assert trained.agent.outbox == ("m1-keys-d1-0",)
    assert invited(trained, plan_with()).asked(SendBegin)


def test_no_secure_sum_is_answered_under_a_refused_plan() -> None:
    device = invited(enrolled(), plan_with(LOOSER["min_devices"]))
    members = invitation(1).model_copy(update={"sum": SumOrder(kind="members", body="{}")})
    assert nothing_left(device.on(Invited(members)))
    assert invited(enrolled(), plan_with()).on(Invited(members)).asked(AnswerSum)


@pytest.mark.parametrize("heard", [False, True])
def test_nothing_of_the_device_alone_is_told_before_the_plan_is_known_or_while_it_is_refused(heard: bool) -> None:
    pinned = promises_of(plan_with())
    agent = Agent(identity=f"{'0' * 32}/har_cnn", metrics={"macro_f1_after": 0.9}, pinned=pinned, required=pinned)
    device = Device(agent, pins=True).on(DataReady(40), Connected())
    if heard:
        invited(device, plan_with(LOOSER["mode"]))
    status = device.asked(PublishStatus)[-1].status
    assert (status.metrics, status.examples <= 1) == ({}, True)


def test_a_person_at_the_device_accepts_what_the_refused_plan_promises() -> None:
    looser = plan_with(LOOSER["noise_multiplier"])
    device = invited(enrolled(), looser)
    assert device.on(PrivacyPinRead(promises_of(looser))).asked(FetchBlob)
    assert device.agent.refusal is None
    assert nothing_left(invited(device, plan_with(LOOSER["mode"]))), "the rest stays required"


def test_settings_require_more_or_less_than_was_promised_field_by_field() -> None:
    asks_more = enrolled(privacy=PrivacyPromises(min_devices=50))
    assert "secure.min_devices is 5, and this device requires 50" in asks_more.asked(PublishStatus)[-1].status.refusal
    many = PROMISED.model_copy(update={"min_devices": 50})
    assert invited(asks_more, plan_with(many)).on(DataReady(40)).asked(FetchBlob)
    asks_less = enrolled(privacy=PrivacyPromises(min_noise=0.5))
    assert invited(asks_less, plan_with(LOOSER["noise_multiplier"])).asked(FetchBlob)
    assert nothing_left(invited(asks_less, plan_with(LOOSER["mode"]))), "what isn't set stays as pinned"


def test_a_device_without_a_server_key_pins_nothing() -> None:
    device = Device().on(Connected(), Announced(announcement(0, "waiting", None, plan=plan_with())), DataReady(40))
    assert device.agent.pinned is None
    assert invited(device, plan_with(SecureSettings())).asked(FetchBlob)


def test_a_refused_plan_is_told_once_and_is_no_missing_announcement() -> None:
    device = invited(enrolled(), plan_with(LOOSER["mode"]))
    again = announcement(1, plan=plan_with(LOOSER["mode"]), serial=7)
    assert not device.on(Announced(again), Tick(), at=UNANNOUNCED_S + 1).last


def test_what_is_required_is_compared_number_by_number() -> None:
    promised = promises_of(plan_with())
    assert shortfall(promised, promised) == ""
    assert shortfall(promised, PrivacyPromises(min_colluding_share=0.33)).startswith("secure.colluding_share is 0.3,")
    assert required(None, PrivacyPromises()) == PrivacyPromises()
    clear = promises_of(plan_with(SecureSettings()))
    assert shortfall(clear, required(promised, PrivacyPromises(mode="off"))) == ""
    assert shortfall(clear, required(None, PrivacyPromises(min_devices=50))).startswith("the server would see")
