"""The network below the head of a continuous federation, as ONNX for ends without torch: made, announced, kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aggregator_api.core.errors import UnavailableError, UnprocessableError
from aggregator_api.core.settings import Settings
from aggregator_api.federations import exports
from aggregator_api.federations.initial_state import build_initial_state
from aggregator_api.federations.service import NewFederation
from aggregator_api.http.app import create_app
from aggregator_api.rounds.announcements import announcement
from aggregator_api.storage import garbage_collection
from aggregator_api.storage.db import repositories
from export.runtime import Session
from federation import wire
from federation.plan import Plan
from federation.protocol.messages import Announcement, read, write
from federation.training.forward import network
from models import build
from tests.aggregator_api.bench import Bench
from tests.aggregator_api.continuous import continuous_plan
from tests.aggregator_api.generated_devices import FEDERATION, SMALL, Wires, tiny_plan
from tests.aggregator_api.http_client import TestClient, problem
from tests.aggregator_api.web.visitors import Visitor, key_of

LONG_AGO = 1_000_000.0
pytestmark = pytest.mark.xdist_group("feature model")  # one server, which exports for 20 s


def features_plan() -> Plan:
    """Hand-made features of raw windows: a network that says which of its columns no orientation changes."""
    model = {"name": "har_features", "options": {"cosines": 17}}
    training, data = {"classes": 2, "feature_dim": 200}, {"normalization": "none"}
    changed = {"model": model, "training": training, "data": data}
    return Plan.model_validate({**continuous_plan().model_dump(mode="json"), **changed})


def test_networks_that_look_at_whole_batches_are_refused() -> None:
    """Sums of their features would depend on how devices divide their examples."""
    changed = {"model": {"name": "har_cnn_alp"}, "training": {"classes": 2, "feature_dim": 192}}
    plan = Plan.model_validate({**continuous_plan().model_dump(mode="json"), **changed})
    with pytest.raises(UnprocessableError, match="'har_cnn_alp' look at the whole batch"):
        build_initial_state(plan, max_model_bytes=1 << 24)


def test_a_server_without_an_exporter_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setattr(exports, "NEEDS", ("there_is_no_such_module",))
    new = NewFederation(name="exact", plan=continuous_plan())
    for act in (bench.runtime.federations.check, bench.runtime.federations.create):
        with pytest.raises(UnavailableError, match="no exporter"):
            act(new)
    bench.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server with `rest`, a continuous federation that starts from its weights, and one of hand-made features."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("networks"), aggregation_process=False)
    app = create_app(settings, Wires)
    with TestClient(app) as client:
        created = client.runtime.federations.create
        plan = tiny_plan()
        other = plan.model_copy(update={"training": plan.training.model_copy(update={"seed": 7})})
        created(NewFederation(name="rest", plan=other))
        created(NewFederation.model_validate({"name": FEDERATION, "plan": continuous_plan(), "start_from": START}))
        created(NewFederation(name=FEATURES, plan=features_plan()))
        yield client


START = {"federation": "rest", "version": 0}
FEATURES = "features"


def described(server: TestClient, key: str, name: str = FEDERATION) -> dict[str, Any]:
    answer = server.get(f"/v1/federations/{name}", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.ci
def test_its_embeddings_are_those_of_the_network_that_devices_get(server: TestClient) -> None:
    key = key_of(server, ["read"])
    pointer = described(server, key)["feature_model"]
    data = server.get(pointer["url"], headers={"Authorization": f"Bearer {key}"}).content
    assert len(data) == pointer["size"]
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
def test_it_says_which_columns_no_orientation_changes_and_which_tell_how_a_phone_lies(server: TestClient) -> None:
    key = key_of(server, ["read"])
    own, other = (
        Session.load(server.get(described(server, key, name)["feature_model"]["url"], headers=bearer(key)).content)
        for name in (FEATURES, FEDERATION)
    )
    module = build("har_features", classes=2, cosines=17)
    assert own.metadata.orientation_free_columns == module.orientation_free_columns
    assert own.metadata.gravity_columns == module.gravity_columns
    assert other.metadata.orientation_free_columns == other.metadata.gravity_columns == ()
    x = 4 * torch.randn(300, 128, 6, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(own.predict(x.numpy()).embedding, module(x).features.numpy(), atol=1e-4)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


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
