"""A backup from before an access ended does not bring the access back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from aggregator_api.auth import api_keys
from aggregator_api.cli.app import app as cli
from aggregator_api.core.settings import load
from aggregator_api.maintenance.backup import back_up
from tests.aggregator_api.generated_devices import FEDERATION, tiny_plan
from tests.aggregator_api.storage.ends_of_access import (
    GONE,
    WAYS,
    DeviceRevoked,
    KeyRevoked,
    Server,
    Token,
    TokenRevoked,
    Untouched,
)
from tests.aggregator_api.web.visitors import Visitor
from tests.live.real_parts import Postgres


class Outcome(NamedTuple):
    """What opened something: by way when it was given, ended, and restored; and what nobody has ended."""

    given: dict[str, bool]
    ended: dict[str, bool]
    restored: dict[str, bool]
    untouched: dict[str, bool]


def play(folder: Path, new_database: Callable[[], None] = lambda: None) -> Outcome:
    """Give everything, back up, end everything, restore into a new database, and try everything again."""
    new_database()
    with Server(folder / "data") as server:
        for name in (FEDERATION, GONE):
            server.post("federations", {"name": name, "plan": tiny_plan().model_dump(mode="json")})
        ways = [way(server, way.__name__) for way in WAYS]
        untouched = Untouched(KeyRevoked(server, "key"), DeviceRevoked(server, "device"), TokenRevoked(server, "token"))
        given = {way.name: isinstance(way, Token) or way.opens(server) for way in ways}
        back_up(load(data_dir=folder / "data"), folder / "backup")
        for way in ways:
            way.end()
        ended = {way.name: way.opens(server) for way in ways}
    new_database()
    restore(folder)
    with Server(folder / "data") as server:
        return Outcome(
            given,
            ended,
            {way.name: way.opens(server) for way in ways},
            {way.name: way.opens(server) for way in untouched},
        )


def restore(folder: Path) -> str:
    """Move the data away, as after a loss, bring it back from the backup, and return what is said of it."""
    (folder / "data").rename(folder / f"lost-{time.time_ns()}")
    said = CliRunner().invoke(cli, ["restore", "--from", str(folder / "backup"), "--data-dir", str(folder / "data")])
    assert said.exit_code == 0, said.output
    for name in (api_keys.OPERATOR_FILE,):
        if not (folder / "data" / name).exists():
            shutil.copy(next(folder.glob("lost-*")) / name, folder / "data" / name)
    return said.stdout


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return play(tmp_path_factory.mktemp("ends"))


@pytest.mark.parametrize("way", [way.__name__ for way in WAYS])
def test_what_has_ended_does_not_open_again_after_a_restore(outcome: Outcome, way: str) -> None:
    assert outcome.given[way]
    assert not outcome.ended[way]
    assert not outcome.restored[way]


@pytest.mark.ci
@pytest.mark.service
def test_postgresql_forgets_none_either(cluster: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAITWAY_LEASE_S", "0")

    def new_database() -> None:
        monkeypatch.setenv("GAITWAY_DATABASE_URL", cluster.new_database(empty=True))

    outcome = play(tmp_path, new_database)
    assert all(outcome.given.values())
    assert not any(outcome.ended.values())
    assert [way for way, opens in outcome.restored.items() if opens] == []
    assert outcome.untouched == {"key": True, "device": True, "token": True}


def test_what_nobody_has_ended_opens_after_a_restore(outcome: Outcome) -> None:
    assert outcome.untouched == {"key": True, "device": True, "token": True}


def test_without_the_ledger_all_is_void_until_an_operator_confirms_each(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        server.post("federations", {"name": FEDERATION, "plan": tiny_plan().model_dump(mode="json")})
        key, device = KeyRevoked(server, "key"), DeviceRevoked(server, "device")
        tokens = [TokenRevoked(server, name) for name in ("by-rest", "by-page", "by-command")]
        back_up(load(data_dir=tmp_path / "data"), tmp_path / "backup")
    shutil.rmtree(tmp_path / "data-ledger")
    said = restore(tmp_path)
    assert "2 keys, 3 tokens and 1 devices wait to be confirmed, as the ledger" in said
    assert "`keys create --scope operator` makes a key" in said
    with Server(tmp_path / "data") as server:
        assert not any(way.opens(server) for way in (key, *tokens))
        assert not device.key_opens(server)
        first = server.command("keys", "create", "--name", "first", "--scope", "operator").strip()
        (tmp_path / "data" / api_keys.OPERATOR_FILE).write_text(first)
        assert " held " in server.command("keys", "list")
        visitor = Visitor.logged_in(server.client, first)
        shown = visitor.get("/").text
        assert "2 keys open nothing since the server was restored without its ledger" in shown
        assert "3 enrolment tokens let nobody in since the server was restored" in shown
        server.post(f"keys/{key.made['id']}/confirm")
        assert key.opens(server)
        here = f"federations/{FEDERATION}"
        server.post(f"{here}/enrolment-tokens/{tokens[0].made['id']}/confirm")
        by_page = f"/{here}/enrolment-tokens/{tokens[1].made['id']}/confirm"
        assert visitor.submit(by_page, on=f"/{here}/enrolment").status_code == 303
        server.command("tokens", "confirm", "--federation", FEDERATION, str(tokens[2].made["id"]))
        assert all(token.opens(server) for token in tokens)
        assert device.claims(server) == 202
        server.post(f"{here}/devices/{device.name}/approve")
        assert device.claims(server) == 200
        assert not device.key_opens(server)
