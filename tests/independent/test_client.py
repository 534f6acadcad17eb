"""A client that was written from the documents takes part beside nobody's code but its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from federation.aggregation.ridge_numpy import sums_of as ours_of
from federation.aggregation.ridge_numpy import travelling
from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.device_http.enrolled_devices import Server
from tests.aggregator_api.generated_devices import FEDERATION
from tests.independent.client import Client, Update, read_tensors
from tests.independent.continuous import ContinuousClient

OURS = {"aggregator_api", "edge_agent", "export", "federation", "gaitway", "har_pipeline", "models", "phone", "sim"}
EXAMPLES = {"a": 20, "b": 30}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path)
    yield found
    found.stop()


def joined(server: Server, device: str, precision: str = "lossless") -> Client:
    """Enrol a client by an operator's token, and let it say that it is ready."""
    made = Client(server.url, FEDERATION, device, precision=precision)
    enrol(server, made)
    made.say("ready", EXAMPLES[device])
    return made


def enrol(server: Server, made: Client) -> None:
    operator = {"Authorization": f"Bearer {server.operator_key()}"}
    body = {"device": made.device, "auto_approve": True, "lifetime_s": 3600}
    tokens = f"{server.url}/v1/federations/{made.federation}/enrolment-tokens"
    answer = httpx.post(tokens, json=body, headers=operator, timeout=60)
    assert answer.status_code == 201, answer.text
    made.enrol(answer.json()["token"])


def invited(client: Client, number: int) -> Client:
    """Let a client listen until it is invited to a round."""

    def hears() -> bool:
        client.listen()
        return client.is_invited and client.invitation["round"] == number

    wait_for(hears)
    return client


def assert_published(server: Server, number: int, updates: list[Update]) -> None:
    """The next model is the mean of the updates, weighted by their examples, as everybody can compute."""
    weights = [update.manifest["examples"] for update in updates]
    expected = {
        name: np.average([update.tensors[name].astype(np.float64) for update in updates], axis=0, weights=weights)
        for name in updates[0].tensors
    }
    operator = {"Authorization": f"Bearer {server.operator_key()}"}
    base = f"{server.url}/v1/federations/{FEDERATION}/models"
    wait_for(lambda: len(httpx.get(base, headers=operator, timeout=60).json()["items"]) > number)
    (version,) = (
        item for item in httpx.get(base, headers=operator, timeout=60).json()["items"] if item["round_number"] == number
    )
    data = httpx.get(server.url + version["url"], headers=operator, timeout=60).content
    model = read_tensors(data)
    for name, value in expected.items():
        np.testing.assert_allclose(model[name], value, atol=2e-4)  # half a scale of int8 at the most


def test_it_imports_nothing_of_ours() -> None:
    for name in ("client.py", "continuous.py"):
        assert not imported(Path(__file__).with_name(name)) & (OURS | {"tests"})


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names if not name.startswith("tests.independent.")}


def test_two_devices_take_part_in_both_rounds(server: Server) -> None:
    clients = {"a": joined(server, "a"), "b": joined(server, "b", "int8")}
    for number in (1, 2):
        updates = [
            invited(client, number).train(EXAMPLES[name], step)
            for (name, client), step in zip(clients.items(), (0.01, 0.02), strict=True)
        ]
        for client, update in zip(clients.values(), updates, strict=True):
            assert client.upload(update)["status"] == "accepted"
        assert_published(server, number, updates)
    clients["a"].listen()
    assert clients["a"].announcement["state"] == "finished"


def test_a_refused_update_is_corrected_and_one_that_broke_off_resumed(server: Server) -> None:
    first, second = joined(server, "a"), joined(server, "b", "int8")
    right = invited(second, 1).train(EXAMPLES["b"], 0.01)
    wrong = Update({**right.manifest, "steps": right.manifest["steps"] + 1}, right.data, right.tensors)
    answer = second.upload(wrong)
    assert (answer["status"], "steps" in answer["reason"]) == ("refused", True)
    assert second.upload(right)["status"] == "accepted", "the same id with another manifest"

    update = invited(first, 1).train(EXAMPLES["a"], 0.01)
    assert first.begin(update)["next_chunk"] == 0
    first.send_chunk(update, 0)
    assert first.begin(update)["next_chunk"] == 1, "after a kill, from the outbox"
    assert first.upload(update)["status"] == "accepted"
    assert first.upload(update)["status"] == "accepted", "its answer was lost"
    assert_published(server, 1, [update, right])


CONTINUOUS = {
    "labels": ["still", "walking"],
    "model": {"name": "har_features", "options": {"cosines": 0}},
    "method": {"name": "analytic"},
    "training": {"classes": 2, "feature_dim": 183},
    "publication": {"interval_s": 0, "send_after_windows": 10},
    "data": {"normalization": "none"},
}


def windows(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return windows (count, 128, 6), every other one of somebody who walks, and their classes."""
    draw, y = np.random.default_rng(seed), np.arange(count) % 2
    x = draw.normal(0, 0.3, (count, 128, 6)) + np.array([0, 0, 9.8, 0, 0, 0])
    x[y == 1, :, 2] += 4 * np.sin(np.arange(128) / 4)
    return x.astype(np.float32), y


@pytest.fixture
def devices(server: Server, tmp_path: Path) -> tuple[ContinuousClient, ContinuousClient]:
    """Two devices of a continuous federation that have its announcement."""
    operator = {"Authorization": f"Bearer {server.operator_key()}"}
    body = {"name": "sums", "plan": CONTINUOUS}
    answer = httpx.post(f"{server.url}/v1/federations", json=body, headers=operator, timeout=120)
    assert answer.status_code == 201, answer.text
    made = [ContinuousClient(server.url, "sums", name, tmp_path / f"{name}.json") for name in ("a", "b")]
    for device in made:
        enrol(server, device)

        def hears(device: ContinuousClient = device) -> bool:
            device.listen()
            return device.announcement["state"] == "collecting" and bool(device.announcement["feature_model"])

        wait_for(hears)
        device.say("ready", 40)
    first, second = made
    return first, second


def assert_sums(device: ContinuousClient, parts: list[Update]) -> dict[str, np.ndarray]:
    """The newest version has exactly these devices' sums; returns it."""

    def is_published() -> bool:
        device.listen()
        found = device.published()
        return int(found["sums/clients"]) == len(parts) and all(
            np.array_equal(found[f"sums/{name}"], sum(part.tensors[name].astype(np.int64) for part in parts))
            for name in ("gram", "moment")
        )

    wait_for(is_published)
    return device.published()


@pytest.mark.ci  # ten seconds of a core; the two tests above play rounds of the same client
def test_exact_sums_are_sent_replaced_and_taken_out(
    server: Server, devices: tuple[ContinuousClient, ContinuousClient], tmp_path: Path
) -> None:
    a, b = devices
    x, y = windows(1, 40)
    assert a.is_due(x, y)
    first, other = a.contribute(x, y), b.contribute(*windows(2, 41))
    ours = travelling(ours_of(a.features(x), y, 2, clip=4.0))
    assert np.array_equal(first.tensors["gram"], ours.gram)
    assert np.array_equal(first.tensors["moment"], ours.moment)
    assert [a.upload(first)["status"], b.upload(other)["status"]] == ["accepted", "accepted"]
    version = assert_sums(a, [first, other])
    scores = b.features(x) @ version["params/head.weight"].T + version["params/head.bias"]
    assert (scores.argmax(1) == y).mean() > 0.9

    more, labels = windows(1, 50)
    assert [a.is_due(more[:49], labels[:49]), a.is_due(more, labels)] == [False, True]
    again = a.contribute(more, labels)
    assert a.begin(again)["next_chunk"] == 0
    a.send_chunk(again, 0)
    a = ContinuousClient(server.url, "sums", "a", tmp_path / "a.json")  # it was killed
    waiting = a.resume()
    assert (waiting.manifest, waiting.data) == (again.manifest, again.data)
    assert a.begin(waiting)["next_chunk"] == 1
    assert a.upload(waiting)["status"] == "accepted"
    a.listen()
    assert_sums(a, [again, other])
    old = Update({**first.manifest, "update_id": "s1-a-old"}, first.data, {})
    assert a.upload(old)["status"] == "refused", "an older sequence"

    assert b.begin(b.withdraw())["status"] == "accepted"
    assert_sums(a, [again])
