"""A person's wish about taking part: durable, said in words, and refused where it could not be kept."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_agent.__main__ import app
from edge_agent.errors import StoreError
from edge_agent.storage.consent import CONTINUOUS, CONTRIBUTION, participation, take_part, withdraw
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.persistence import reset_agent


def test_a_wish_outlives_its_connection_and_a_federation_that_is_re_created(tmp_path: Path) -> None:
    with closing(StateStore(tmp_path)) as store:
        assert participation(store).takes_part
        first = withdraw(store)
        reset_agent(store, "1" * 32 + "/har_features", 1)
    with closing(StateStore(tmp_path)) as store:
        assert participation(store) == first
        assert not first.takes_part
        assert withdraw(store).withdrawn_at == first.withdrawn_at
        assert take_part(store).takes_part


def test_it_is_confirmed_once_the_withdrawal_is_answered(tmp_path: Path) -> None:
    with closing(StateStore(tmp_path)) as store:
        withdraw(store)
        assert "n't confirmed" in participation(store).words
        store.put(**{CONTRIBUTION: json.dumps({"kind": "sums", "update_id": "u1"})})
        assert not participation(store).is_confirmed
        store.put(**{CONTRIBUTION: json.dumps({"kind": "withdrawn", "update_id": "u2"})})
        assert participation(store).is_confirmed


def test_rounds_cannot_be_withdrawn_from_and_the_words_say_what_to_do(tmp_path: Path) -> None:
    with closing(StateStore(tmp_path)) as store:
        store.put(**{CONTINUOUS: "no"})
        with pytest.raises(StoreError, match="delete this device"):
            withdraw(store)
        assert participation(store).takes_part


def test_the_commands_say_what_they_did(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[agent]\ndevice = "d1"\nfederation = "demo"\ndata_dir = "{tmp_path / "data"}"\n'
        '[server]\nurl = "http://127.0.0.1:9"\n[broker]\nhost = "127.0.0.1"\nport = 9\n'
    )
    runner = CliRunner()
    assert "contains no device yet" in runner.invoke(app, ["withdraw", "--config", str(config)]).output
    with closing(StateStore(tmp_path / "data")) as store:
        said = runner.invoke(app, ["withdraw", "--config", str(config)])
        assert "was withdrawn on" in said.output
        assert "isn't running" in said.output
        assert not participation(store).takes_part
        assert "takes part" in runner.invoke(app, ["take-part", "--config", str(config)]).output
        assert participation(store).takes_part
