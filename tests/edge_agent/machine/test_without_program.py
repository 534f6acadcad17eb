"""A device without torch: it waits for the federation's program, and fetches it with each broadcast."""

from __future__ import annotations

from edge_agent.machine.commands import FetchBlob, StartJob
from edge_agent.machine.events import Announced, BlobFetched, Connected, DataReady
from edge_agent.machine.state import WITHOUT_PROGRAM, status_of
from federation.plan import SecureSettings
from tests.edge_agent.factories import announcement, pointer
from tests.edge_agent.state_machine import A, Device, ready

PROGRAM = pointer("d")


def test_a_device_without_torch_waits_for_a_program_and_no_round_for_it() -> None:
    device = Device(runtime="onnx").on(Connected(), Announced(announcement(0, "waiting", None)), DataReady(40))
    assert (device.status, status_of(device.agent).detail) == ("collecting", WITHOUT_PROGRAM)
    device.announced(1)
    assert not device.asked(FetchBlob)
    device.on(Announced(announcement(0, "waiting", None, program=PROGRAM)))
    assert device.status == "ready"
    device.announced(1, program=PROGRAM)
    assert device.asked(FetchBlob) == [FetchBlob(pointer(), PROGRAM)]
    device.on(BlobFetched(A))
    assert [job.network for job in device.asked(StartJob)] == [PROGRAM]


def test_a_device_without_torch_leaves_a_federation_that_has_ended_without_a_program() -> None:
    device = Device(runtime="onnx", until="finished").on(Connected(), DataReady(40, measurable=True))
    device.on(Announced(announcement(3, "finished")))
    assert device.agent.finished


def test_a_device_without_torch_makes_a_continuous_federations_sums_of_its_networks_file() -> None:
    device = Device(runtime="onnx").on(Connected(), Announced(announcement(1, continuous=True)))
    device.on(DataReady(40, keys=frozenset(range(40))))
    assert (device.status, device.asked(FetchBlob)) == ("collecting", [])
    device.on(Announced(announcement(1, continuous=True, feature_model=PROGRAM, program=pointer("e"))))
    assert device.asked(FetchBlob) == [FetchBlob(pointer(), PROGRAM)]
    device.on(BlobFetched(A))
    assert [(job.network, job.continuous) for job in device.asked(StartJob)] == [(PROGRAM, True)]


def test_a_device_with_torch_needs_no_program() -> None:
    assert ready().announced(1, program=PROGRAM).asked(FetchBlob) == [FetchBlob(pointer(), None)]


def test_a_device_without_torch_waits_where_updates_are_added_up_though_phones_have_a_program() -> None:
    said = announcement(0, "waiting", None, program=PROGRAM)
    private = said.plan.model_copy(update={"secure": SecureSettings(mode="masked")})
    device = Device(runtime="onnx").on(Connected(), DataReady(40))
    device.on(Announced(said.model_copy(update={"plan": private})))
    assert (device.status, status_of(device.agent).detail) == ("collecting", WITHOUT_PROGRAM)
