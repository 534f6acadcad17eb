"""Devices that cannot train: plans that let them join, the model made for them, and what they may upload."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sqlalchemy import select

from aggregator_api.app import create_app
from aggregator_api.db import repositories
from aggregator_api.db.models import ModelVersionRow
from aggregator_api.errors import UnavailableError, UnprocessableError
from aggregator_api.federations import exports
from aggregator_api.federations.initial_state import build_initial_state
from aggregator_api.federations.requests import NewFederation
from aggregator_api.rounds.announcements import announcement
from aggregator_api.settings import Settings
from aggregator_api.storage import garbage_collection
from export.runtime import Session
from federation import wire
from federation.plan import Plan, live_incompatibility
from federation.protocol.messages import Announcement, read, write
from federation.records import Tree
from federation.training.forward import network
from models import build
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION, SMALL, Wires, parcel, tiny_plan
from tests.aggregator_api.http_client import TestClient, problem
from tests.aggregator_api.web.visitors import Visitor, key_of

FROZEN = {"name": "fedproto", "backbone": "frozen"}
LONG_AGO = 1_000_000.0


def light_plan(**changes: Any) -> Plan:
    return Plan.model_validate(
        {**tiny_plan().model_dump(mode="json"), "method": FROZEN, "light_clients": True, **changes}
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": {"name": "fedavg"}}, "method is 'fedavg' with backbone = 'trained'"),
        ({"method": {"name": "fedproto"}}, "in which nobody trains"),
        ({"task": {"name": "masked_reconstruction"}}, "class means alone"),
        ({"data": {"input": {"shape": (3, 16, 16)}}}, "windows of motion sensors"),
        ({"data": {"normalization": "pooled"}}, "simulations alone"),
    ],
)
def test_plans_that_light_clients_cannot_follow_are_refused(changes: dict[str, Any], words: str) -> None:
    plan = light_plan(**changes)
    assert words in (live_incompatibility(plan) or "")
    with pytest.raises(ValidationError, match=r"light_clients|simulations alone"):
        NewFederation(name="light", plan=plan)


@pytest.mark.parametrize(
    ("model", "dimensions", "words"),
    [
        ({"name": "mnist_cnn"}, 50, "'mnist_cnn' takes image examples"),
        ({"name": "har_cnn_alp"}, 192, "look at the whole batch"),
        ({"name": "har_cnn", "options": {**SMALL, "hidden": 3}}, 8, "two hidden units of the head for each class: 4"),
    ],
)
def test_models_that_they_cannot_use_are_refused(model: dict[str, Any], dimensions: int, words: str) -> None:
    training = {"classes": 2, "feature_dim": dimensions}
    with pytest.raises(UnprocessableError, match=words):
        build_initial_state(light_plan(model=model, training=training), max_model_bytes=1 << 24)


def test_a_plan_and_an_announcement_without_them_are_written_as_before() -> None:
    assert "light_clients" not in tiny_plan().model_dump_json()
    assert light_plan().model_dump(mode="json")["light_clients"] is True


def test_a_server_without_an_exporter_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setattr(exports, "NEEDS", ("there_is_no_such_module",))
    new = NewFederation(name="light", plan=light_plan())
    for act in (bench.runtime.federations.check, bench.runtime.federations.create):
        with pytest.raises(UnavailableError, match="no exporter"):
            act(new)
    bench.stop()


# ---- uploads


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Bench]:
    """Round 1 of a federation in which nobody trains, open for devices a and b."""
    bench = Bench(tmp_path, light_plan(light_clients=False))
    for device in ("a", "b"):
        bench.say(device, "ready", examples=10)
    yield bench
    bench.stop()


def means(scale: float = 1.0, counts: tuple[float, float] = (4.0, 6.0)) -> Tree:
    return {"prototypes": scale * torch.ones(2, 8), "counts": torch.tensor(counts)}


def test_class_means_without_a_step_are_whole_work(frozen: Bench) -> None:
    for device, scale in (("a", 1.0), ("b", 3.0)):
        answer = frozen.upload(parcel(frozen.now(), device, means(scale), steps=0, class_counts=(4, 6)))
        assert (answer.status, answer.reason) == ("accepted", "")
    wait_for(lambda: frozen.now().round == 2)
    state = wire.decode(frozen.state(), limit_bytes=1 << 20)
    torch.testing.assert_close(state["prototypes"], torch.full((2, 8), 2.0))
    assert state["known"].tolist() == [1, 1]
    assert "params" in state


@pytest.mark.parametrize(
    ("tree", "said", "words"),
    [
        (means(float("nan")), {}, "NaN or infinity"),
        (means(), {"steps": 3}, "3 steps on 10 examples are claimed, the plan asks for 0"),
        ({"prototypes": torch.ones(2, 9), "counts": torch.tensor([4.0, 6.0])}, {}, "prototypes"),
        ({"prototypes": torch.ones(2, 8)}, {}, "'counts' of shape"),
        (means(counts=(4.0, 60.0)), {}, "10 examples"),
        (means(counts=(-4.0, 14.0)), {}, "counts"),
        (means(counts=(4.5, 5.5)), {}, "counts"),
        ({**means(), "params": {"head.0.bias": torch.ones(8)}}, {}, "unexpected tensor"),
    ],
)
def test_hostile_means_are_refused(frozen: Bench, tree: Tree, said: dict[str, Any], words: str) -> None:
    given = {"steps": 0, "class_counts": (4, 6), **said}
    assert words in frozen.refused(parcel(frozen.now(), "a", tree, **given))
    assert frozen.upload(parcel(frozen.now(), "b", means(), steps=0)).status == "accepted"


def test_means_of_another_size_are_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, light_plan(light_clients=False, rounds={"rounds": 1, "minimum_clients": 1}))
    bench.runtime.federations.pause(FEDERATION)
    for device in "abcde":
        bench.say(device, "ready", examples=10)
    bench.runtime.federations.resume(FEDERATION)
    for number, device in enumerate("abcde"):
        scale = 1e6 if device == "e" else 1 + 0.1 * number
        bench.upload(parcel(bench.now(), device, means(scale), steps=0))
    wait_for(lambda: bench.now().state == "finished")
    state = wire.decode(bench.state(), limit_bytes=1 << 20)
    bench.stop()
    assert float(state["prototypes"].max()) == pytest.approx(1.15)


def test_without_a_step_no_other_method_has_learnt_anything(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tiny_plan(partial_work="use"))
    for device in ("a", "b"):
        bench.say(device, "ready")
    assert "0 steps were done" in bench.refused(bench.update_of("a", steps=0))
    bench.stop()


# ---- the model for them


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server with a federation `rest`, and one for light clients that starts from its weights."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("light"), aggregation_process=False)
    app = create_app(settings, Wires)
    with TestClient(app) as client:
        created = client.runtime.federations.create
        plan = tiny_plan()
        other = plan.model_copy(update={"training": plan.training.model_copy(update={"seed": 7})})
        created(NewFederation(name="rest", plan=other))
        created(NewFederation.model_validate({"name": FEDERATION, "plan": light_plan(), "start_from": START}))
        yield client


START = {"federation": "rest", "version": 0}


def described(server: TestClient, key: str) -> dict[str, Any]:
    answer = server.get(f"/v1/federations/{FEDERATION}", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.ci
def test_its_embeddings_are_those_of_the_network_that_devices_get(server: TestClient) -> None:
    key = key_of(server, ["read"])
    light = described(server, key)["feature_model"]
    data = server.get(light["url"], headers={"Authorization": f"Bearer {key}"}).content
    assert len(data) == light["size"]
    model = described(server, key)["model"]
    broadcast = server.get(model["url"], headers={"Authorization": f"Bearer {key}"}).content
    params = wire.decode(broadcast, limit_bytes=1 << 20)["params"]
    with server.runtime.database.read() as session:
        rest = repositories.find_federation(session, "rest")
        assert rest is not None
        state = server.runtime.blobs.read(repositories.current_version(session, rest).state_sha256)
    given = wire.decode(state, limit_bytes=1 << 20)["params"]
    assert all(torch.equal(params[name], given[name]) for name in params if not name.startswith("head."))
    module = build("har_cnn", classes=2, **SMALL)
    x = torch.randn(5, 128, 6, generator=torch.Generator().manual_seed(0))
    expected = network(module).evaluate(params, dict(module.named_buffers()), x, None).features
    found = Session.load(data).predict(x.numpy())
    np.testing.assert_allclose(found.embedding, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.ci
def test_announcements_name_it_and_devices_of_that_federation_get_it(server: TestClient) -> None:
    with server.runtime.database.read() as session:
        rows = [repositories.find_federation(session, name) for name in (FEDERATION, "rest")]
        ours, rest = (announcement(session, row, chunk_bytes=1024) for row in rows if row is not None)
    assert read(Announcement, write(ours)).feature_model == ours.feature_model
    assert ours.feature_model is not None
    assert b"feature_model" not in write(rest)
    own, strange = (key_of(server, ["device"], name) for name in (FEDERATION, "rest"))
    assert server.get(ours.feature_model.url, headers={"Authorization": f"Bearer {own}"}).status_code == 200
    problem(server.get(ours.feature_model.url, headers={"Authorization": f"Bearer {strange}"}), 404)


@pytest.mark.ci
def test_the_plan_page_says_that_they_may_join(server: TestClient) -> None:
    visitor = Visitor.logged_in(server, key_of(server, ["read"]))
    assert "browser, may join" in visitor.get(f"/federations/{FEDERATION}/plan").text
    assert "may join" not in visitor.get("/federations/rest/plan").text


@pytest.mark.ci
def test_it_is_kept_as_long_as_its_federation(server: TestClient) -> None:
    runtime, key = server.runtime, key_of(server, ["read"])
    sha256 = described(server, key)["feature_model"]["sha256"]

    def collect() -> None:
        for path in Path(runtime.blobs.root).glob("??/*"):
            os.utime(path, (LONG_AGO, LONG_AGO))
        garbage_collection.collect(runtime.database, runtime.blobs, grace_s=3600.0)

    collect()
    assert runtime.blobs.has(sha256)
    runtime.deletion.delete_federation(FEDERATION, force=True, dry_run=False)
    collect()
    assert not runtime.blobs.has(sha256)


def test_a_lone_devices_means_replace_no_one_elses_and_go_with_the_device(tmp_path: Path) -> None:
    rounds = {"rounds": 3, "minimum_clients": 1, "clients_per_round": 1}
    bench = Bench(tmp_path, light_plan(light_clients=False, rounds=rounds))
    for number, (device, scale, counts) in enumerate(
        (("a", 1.0, (10.0, 0.0)), ("b", 3.0, (4.0, 6.0)), ("c", 5.0, (0.0, 10.0))), start=1
    ):
        bench.say(device, "ready", examples=10)
        wait_for(partial(bench.collects, number))
        bench.runtime.federations.pause(FEDERATION)  # the next round begins without this device
        given = parcel(bench.now(), device, means(scale, counts), steps=0)
        assert bench.upload(given).status == "accepted"
        bench.say(device, "offline")
        bench.runtime.federations.resume(FEDERATION)
    wait_for(lambda: bench.now().state == "finished")
    found = wire.decode(bench.state(), limit_bytes=1 << 20)
    assert sorted(found["clients"]) == ["a", "b", "c"]
    np.testing.assert_allclose(found["prototypes"][:, 0], [(10 + 4 * 3) / 14, (6 * 3 + 10 * 5) / 16], rtol=1e-6)
    last = bench.now().model
    assert last is not None
    sent = wire.decode(bench.runtime.blobs.read(last.sha256), limit_bytes=1 << 20)
    assert "clients" not in sent
    bench.runtime.deletion.delete_device(FEDERATION, "b", dry_run=False)
    left = wire.decode(bench.state(), limit_bytes=1 << 20)
    assert sorted(left["clients"]) == ["a", "c"]
    with bench.runtime.database.read() as session:
        names = [bench.runtime.blobs.read(row.state_sha256) for row in session.scalars(select(ModelVersionRow))]
    assert not any(b"clients/b/" in data for data in names)
    bench.stop()
