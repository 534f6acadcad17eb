"""Text and numbers that no screen or database should see, in every place of every request: refused, never a 500."""

from __future__ import annotations

import copy
import json
import unicodedata
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from gaitway.plain_text import MAX_LABEL
from tests.aggregator_api.api.test_bounds import DOCUMENT
from tests.aggregator_api.generated_devices import FEDERATION, Wires, tiny_plan
from tests.aggregator_api.http_client import OperatorClient
from tests.live.real_parts import Postgres

SIGNATURE, PUBLIC_KEY = "A" * 86 + "==", "A" * 43 + "="
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("post", "/v1/enrol"): {
        "token": "t", "federation": FEDERATION, "device": "d", "public_key": PUBLIC_KEY, "signature": SIGNATURE,
    },
    ("post", "/v1/enrol/claim"): {
        "federation": FEDERATION, "device": "d", "issued_at": 5, "signature": SIGNATURE,
    },
    ("post", "/v1/enrol/token"): {
        "federation": FEDERATION, "device": "d", "issued_at_ms": 5, "signature": SIGNATURE,
    },
    ("post", "/v1/federations"): {
        "name": "another",
        "plan": tiny_plan().model_dump(mode="json") | {
            "promotion": {"min_devices": 2, "margin": 0.5},
            "rollout": {"waves": [{"tags": ["pilot"]}, 0.5, 1.0], "own_models": True},
            "packages": {"models:x": "x 1"},
        },
        "start_from": {"federation": FEDERATION, "version": 0},
    },
    ("patch", "/v1/federations/{name}"): {
        "rounds": {"deadline_s": 60.0, "rounds": 3, "cohort_tags": ["pilot"]}, "promotion": {"margin": 0.5},
    },
    ("put", "/v1/federations/{name}/aliases/{alias}"): {"version": 0, "force": True, "reason": "why"},
    ("put", "/v1/federations/{name}/devices/{device}/tags"): {"tags": ["pilot"]},
    ("post", "/v1/federations/{name}/enrolment-tokens"): {
        "device": "d", "auto_approve": True, "tags": ["pilot"], "lifetime_s": 600,
    },
    ("post", "/v1/federations/{name}/rollouts"): {
        "version": 0, "waves": [{"tags": ["pilot"]}, 0.5, 1.0], "soak_s": 1.0, "force": True, "reason": "why",
    },
    ("post", "/v1/keys"): {"name": "k", "scopes": ["read"], "federation": FEDERATION, "lifetime_s": 600},
}  # fmt: skip
"""A body for each operation that takes JSON, with something in every place where texts and numbers stand."""
OF_DEVICES = {("post", "/v1/federations/{name}/devices/{device}/status")}
"""Their bodies are messages of the protocol, whose texts `tests/federation/protocol/test_hostile_text.py` tries."""
PLACES = {"name": FEDERATION, "device": "a", "alias": "canary"}

BAD_TEXTS = ["x\ud800", "\udfff", "x\0", "a\r\nb", "a\tb", "a\u2028b", "a\u202eb", "\x9b1m"]
NOT_NUMBERS: list[Any] = [True, False, "5", "0.5"]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.ci)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorClient]:
    more: dict[str, Any] = {"key_requests_per_s": 1e6}
    if request.param == "postgresql":
        cluster: Postgres = request.getfixturevalue("cluster")
        more |= {"database_url": cluster.new_database(), "lease_s": 0}
    settings = Settings(data_dir=tmp_path_factory.mktemp("server"), aggregation_process=False, programs=False, **more)
    with OperatorClient(create_app(settings, Wires), raise_server_exceptions=False) as client:
        body = {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")}
        assert client.post("/v1/federations", json=body).status_code == 201
        yield client


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the way to each text, number and truth value, and what stands there."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*before, key))
    elif value is not None:
        yield before, value


def changed(body: dict[str, Any], path: tuple[Any, ...], value: Any, *, is_key: bool = False) -> str:
    """Return the body as JSON with another value, or another key, at one place."""
    copied = copy.deepcopy(body)
    inner: Any = copied
    for key in path[:-1]:
        inner = inner[key]
    if is_key:
        inner[value] = inner.pop(path[-1])
    else:
        inner[path[-1]] = value
    return json.dumps(copied)


def hostile(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield bodies that must be refused, each with what is wrong in it."""
    for path, value in places(body):
        at = ".".join(map(str, path))
        for text in BAD_TEXTS:
            if isinstance(value, str):
                yield f"{at} = {text!a}", changed(body, path, text)
            if isinstance(path[-1], str):
                yield f"{at} is {text!a}", changed(body, path, text, is_key=True)
        if isinstance(value, int | float):
            odd = ["yes", 1, 0.0] if isinstance(value, bool) else NOT_NUMBERS
            # a network's own options are read with the network
            for number in () if "options" in path else odd:
                yield f"{at} = {number!r}", changed(body, path, number)


def answer(server: OperatorClient, operation: tuple[str, str], body: str) -> Any:
    method, path = operation
    return server.request(method, path.format(**PLACES), content=body, headers={"content-type": "application/json"})


def test_every_operation_that_takes_json_is_tried() -> None:
    listed = {
        (method, path)
        for path, operations in DOCUMENT["paths"].items()
        for method, operation in operations.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    assert listed - OF_DEVICES == set(BODIES)


@pytest.mark.parametrize("operation", BODIES, ids=" ".join)
def test_odd_text_and_numbers_are_refused_wherever_they_stand(
    server: OperatorClient, operation: tuple[str, str]
) -> None:
    cases = list(hostile(BODIES[operation]))
    taken = [
        (words, found.status_code, found.text[:200])
        for words, body in cases
        if (found := answer(server, operation, body)).status_code != 422
    ]
    assert taken == []
    assert len(cases) >= len(BAD_TEXTS)


def test_labels_have_a_length_and_one_form(server: OperatorClient) -> None:
    plan = tiny_plan().model_dump(mode="json")
    operation = ("post", "/v1/federations")

    def created(name: str, label: str) -> Any:
        return answer(server, operation, json.dumps({"name": name, "plan": plan | {"labels": ["still", label]}}))

    assert created("long", "x" * MAX_LABEL).status_code == 201
    assert created("longer", "x" * (MAX_LABEL + 1)).status_code == 422
    assert created("empty", "").status_code == 422
    decomposed = unicodedata.normalize("NFD", "Fußgänger 走る")
    found = created("composed", decomposed)
    assert found.status_code == 201
    assert found.json()["plan"]["labels"] == ["still", unicodedata.normalize("NFC", decomposed)]
    assert decomposed != found.json()["plan"]["labels"][1]


def test_the_same_label_twice_is_refused_in_any_form(server: OperatorClient) -> None:
    plan = tiny_plan().model_dump(mode="json") | {"labels": ["g\u00e4hen", "ga\u0308hen"]}
    found = answer(server, ("post", "/v1/federations"), json.dumps({"name": "twice", "plan": plan}))
    assert found.status_code == 422
    assert "twice" in found.json()["detail"]


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "PATCH"])
def test_control_characters_in_an_address_are_refused(server: OperatorClient, method: str) -> None:
    wrong = []
    for path, operations in DOCUMENT["paths"].items():
        if method.lower() not in operations or "{" not in path:
            continue
        for text in ("\0", "a\r\nb", "\u202e"):
            names = {part[1:-1] for part in path.split("/") if part.startswith("{")}
            for name in names:
                filled = {**dict.fromkeys(names, "1"), **{k: v for k, v in PLACES.items() if k in names}, name: text}
                address = path.format(**{key: quote(value) for key, value in filled.items()})
                found = server.request(method, address, json={})
                if not 400 <= found.status_code < 500:
                    wrong.append((address, found.status_code))
    assert wrong == []
