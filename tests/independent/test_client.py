"""A client that was written from the documents takes part beside nobody's code but its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.aggregator_api.bench import wait_for
from tests.aggregator_api.device_http.enrolled_devices import Server
from tests.aggregator_api.generated_devices import FEDERATION
from tests.independent import client as written
from tests.independent.client import Client, Update, read_tensors

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
    operator = {"Authorization": f"Bearer {server.operator_key()}"}
    body = {"device": device, "auto_approve": True, "lifetime_s": 3600}
    tokens = f"{server.url}/v1/federations/{FEDERATION}/enrolment-tokens"
    answer = httpx.post(tokens, json=body, headers=operator, timeout=60)
    assert answer.status_code == 201, answer.text
    made.enrol(answer.json()["token"])
    made.say("ready", EXAMPLES[device])
    return made


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
    tree = ast.parse(Path(written.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in names} & (OURS | {"tests"})


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
