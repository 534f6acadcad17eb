"""Checkpoints from outside: a federation starts from one's weights, and nothing is kept that was not checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from httpx import Response
from safetensors.torch import save
from sqlalchemy import select

from aggregator_api.core.settings import Settings
from aggregator_api.federations.checkpoints import MAX_HEADER_BYTES, started_from_model
from aggregator_api.federations.service import get_federation
from aggregator_api.http.app import create_app
from aggregator_api.storage.db import repositories
from aggregator_api.storage.db.models import AuditRow, EventRow
from federation import wire
from federation.training.forward import initial_client, initial_model
from gaitway.input_spec import InputSpec
from models import build
from models.checkpoint import CheckpointInfo, save_checkpoint
from tests.aggregator_api.generated_devices import SMALL, Wires, tiny_plan
from tests.aggregator_api.http_client import OperatorClient, problem

BINARY = {"content-type": "application/octet-stream"}
LIMIT = 1 << 17


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorClient]:
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("server"),
        aggregation_process=False,
        max_body_bytes=4096,
        max_model_bytes=LIMIT,
    )
    with OperatorClient(create_app(settings, Wires)) as client:
        yield client


@pytest.fixture(scope="module")
def module() -> torch.nn.Module:
    """A network whose weights are none that a plan's seed draws."""
    return initial_model(lambda: build("har_cnn", classes=2, **SMALL), 77)


@pytest.fixture(scope="module")
def checkpoint(module: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("checkpoint") / "global.safetensors"
    spec = InputSpec.windows((0.0,) * 6, (1.0,) * 6)
    info = CheckpointInfo("har_cnn", SMALL, ("still", "walking"), spec, method="fedavg", round=3, federation="walk")
    save_checkpoint(path, module, info)
    return path.read_bytes()


def upload(server: OperatorClient, data: bytes) -> Response:
    return server.post("/v1/checkpoints", content=data, headers=BINARY)


def create(server: OperatorClient, name: str, sha256: str, **changes: Any) -> Response:
    plan = {**tiny_plan().model_dump(mode="json"), **changes}
    return server.post("/v1/federations", json={"name": name, "plan": plan, "start_from": {"checkpoint": sha256}})


def test_a_federation_starts_from_an_uploaded_checkpoint(
    server: OperatorClient, module: torch.nn.Module, checkpoint: bytes
) -> None:
    assert len(checkpoint) > server.runtime.settings.max_body_bytes  # of which this route knows nothing
    answer = upload(server, checkpoint)
    assert answer.status_code == 201, answer.text
    said = answer.json()
    assert said["sha256"] == hashlib.sha256(checkpoint).hexdigest()
    assert (said["model"], said["labels"], said["method"], said["round"]) == (
        "har_cnn",
        ["still", "walking"],
        "fedavg",
        3,
    )
    assert create(server, "continued", said["sha256"]).status_code == 201
    runtime, given = server.runtime, module.state_dict()
    with runtime.database.read() as session:
        version = repositories.current_version(session, get_federation(session, "continued"))
        params = wire.decode(runtime.blobs.read(version.broadcast_sha256), limit_bytes=1 << 20)["params"]
        created = session.scalars(select(EventRow.detail).where(EventRow.kind == "federation.created")).one()
        audited = session.scalars(select(AuditRow).where(AuditRow.action == "checkpoints.create")).all()
    assert f"started from checkpoint {said['sha256'][:12]}" in created
    assert all(torch.equal(params[name], given[name]) == (not name.startswith("head.")) for name in params)
    assert [row.detail for row in audited] == [f"{len(checkpoint):,} bytes"]  # not the bytes themselves


def test_what_does_not_fit_the_plan_is_refused_with_the_parameter(server: OperatorClient, checkpoint: bytes) -> None:
    sha256 = upload(server, checkpoint).json()["sha256"]
    other = {"model": {"name": "har_cnn", "options": {**SMALL, "channels": [16, 16]}}}
    assert "does not fit: its conv" in problem(create(server, "other", sha256, **other), 422)["detail"]
    assert "upload it again" in problem(create(server, "gone", "0" * 64), 404)["detail"]
    blob = server.runtime.blobs.put(b"what a device sent, or anything else that lies here").sha256
    assert "this isn't a checkpoint" in problem(create(server, "blob", blob), 422)["detail"]
    assert problem(create(server, "name", "../../etc/passwd"), 422)


def test_prototypes_of_alp_layers_come_along_and_the_head_does_not() -> None:
    options = {**SMALL, "prototypes": [4]}
    given, fresh = (initial_model(lambda: build("har_cnn_alp", classes=2, **options), seed) for seed in (77, 0))
    state = given.state_dict()
    client = started_from_model(initial_client(fresh), state)
    laid = {**client.params, **{name: value for name, value in client.buffers.items() if name.endswith("prototypes")}}
    assert sum("prototypes" in name for name in laid) >= 2
    assert all(torch.equal(laid[name], state[name]) == (not name.startswith("head.")) for name in laid)


def hostile(kind: str, module: torch.nn.Module, checkpoint: bytes) -> bytes:
    """Return bytes that are no checkpoint, or one that must not be used."""
    state = {name: value.clone() for name, value in module.state_dict().items()}
    length = int.from_bytes(checkpoint[:8], "little")
    said = json.loads(checkpoint[8 : 8 + length])["__metadata__"]["gaitway"]
    if kind == "not finite":
        next(value for value in state.values() if value.is_floating_point())[0] = torch.nan
    if kind == "missing":
        state.pop(next(iter(state)))
    text = {
        "other model": said.replace('"har_cnn"', '"har_cmm"'),
        "nested": "[" * 100_000,
        "options": said.replace('"hidden": 8', '"hidden": "many"'),
    }.get(kind, said)
    crafted = {
        "empty": b"",
        "text": b"these are not tensors",
        "long header": (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{" * LIMIT,
        "cut off": checkpoint[:-10],
        "foreign": save(state),
    }
    return crafted[kind] if kind in crafted else save(state, metadata={"gaitway": text})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("empty", "this isn't a checkpoint"),
        ("text", "this isn't a checkpoint"),
        ("long header", "this isn't a checkpoint"),
        ("cut off", "not a safetensors file"),
        ("foreign", "no metadata 'gaitway'"),
        ("other model", "did you mean 'har_cnn'"),
        ("nested", "gaitway"),
        ("options", "cannot build"),
        ("missing", "tensors missing"),
        ("not finite", "aren't finite"),
    ],
)
def test_what_is_no_checkpoint_is_not_kept(
    server: OperatorClient, module: torch.nn.Module, checkpoint: bytes, kind: str, words: str, tmp_path: Path
) -> None:
    before = set(server.runtime.blobs.older_than(2**62))
    detail = problem(upload(server, hostile(kind, module, checkpoint)), 422)["detail"]
    assert words in detail
    assert "/" not in detail.replace("models/global.safetensors", "")  # no path of the server's
    assert set(server.runtime.blobs.older_than(2**62)) == before


def test_one_that_is_too_large_is_not_read(server: OperatorClient) -> None:
    assert "max_model_bytes" in problem(upload(server, bytes(LIMIT + MAX_HEADER_BYTES + 1)), 413)["detail"]


@pytest.mark.parametrize(
    "labels", [["still", "x\ud800"], ["still", "a\r\nb"], ["still", "\0"], ["still", "x" * 101], ["still", ""]]
)
def test_a_checkpoint_with_labels_that_are_no_text_is_refused(
    server: OperatorClient, checkpoint: bytes, labels: list[str]
) -> None:
    found = problem(server.post("/v1/checkpoints", content=relabelled(checkpoint, labels), headers=BINARY), 422)
    assert "label" in found["detail"] or "character" in found["detail"]


def relabelled(checkpoint: bytes, labels: list[str]) -> bytes:
    """Return a checkpoint that says other labels."""
    length = int.from_bytes(checkpoint[:8], "little")
    header = json.loads(checkpoint[8 : 8 + length])
    info = json.loads(header["__metadata__"]["gaitway"])
    header["__metadata__"]["gaitway"] = json.dumps({**info, "labels": labels})
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + checkpoint[8 + length :]
