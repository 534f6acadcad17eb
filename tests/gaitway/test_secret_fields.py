"""Secrets of every program's settings: whatever is wrong with them, no error, log line or description repeats them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from aggregator_api.core import settings as server
from aggregator_api.core.errors import ConfigError
from aggregator_api.maintenance.fsck import check
from aggregator_api.storage.blobs import BlobStore, shown_url
from edge_agent.config.settings import Config, load
from edge_agent.errors import ConfigError as AgentConfigError
from gaitway.errors import first_problem
from gaitway.secret_fields import revealed

MARK = "hunter2"
WRONG: list[Any] = [
    f"ftp://{MARK}/x", f"https://u:{MARK}@h/", MARK, f"{MARK}" * 1000, f"{MARK}\n", [MARK], {MARK: MARK}, 42424242,
]  # fmt: skip
NAMES = ("password", "secret", "token", "webhook", "database_url", "blob_url")


def fields(kind: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """Yield each field of a model and of the sections below it."""
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields(inner)
        else:
            yield kind, name


def is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(is_secret, get_args(annotation)))


ALL = [*fields(server.Settings), *fields(Config)]
SECRETS = [(kind, name) for kind, name in ALL if is_secret(kind.model_fields[name].annotation)]


def test_whatever_is_called_a_secret_is_one() -> None:
    called = [(kind, name) for kind, name in ALL if any(word in name for word in NAMES)]
    plain = [name for kind, name in called if not name.endswith(("_file", "_format")) and (kind, name) not in SECRETS]
    assert plain == []
    assert len(SECRETS) == 10


@pytest.mark.parametrize(("kind", "name"), SECRETS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:12])
def test_no_error_about_a_secret_repeats_it(kind: type[BaseModel], name: str, value: Any) -> None:
    given = {"device": "d", "federation": "f", "data_dir": "x"} if kind.__name__ == "AgentSection" else {}
    try:
        made = kind(**given, **{name: value})
    except ValidationError as error:
        shown = [first_problem(error, input_shown=True), "".join(traceback.format_exception(error))]
    else:
        shown = [repr(made), str(made), f"{getattr(made, name)}"]
        assert revealed(getattr(made, name)) == value
    assert not any(MARK in text or "42424242" in text for text in shown)


def test_a_webhook_is_not_printed_by_a_command(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text(f'notify_webhook_url = "http://hooks.example/{MARK}"\n')
    with pytest.raises(ConfigError) as caught:
        server.load(config)
    assert "expected https" in str(caught.value)
    assert MARK not in "".join(traceback.format_exception(caught.value))


def test_a_misspelt_setting_is_not_printed_with_its_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        server.load(notify_webhok_url=f"https://hooks.example/{MARK}")
    assert "notify_webhok_url" in str(caught.value)
    assert MARK not in "".join(traceback.format_exception(caught.value))


def test_an_agents_password_is_not_printed(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        '[agent]\ndevice = "d"\nfederation = "f"\ndata_dir = "x"\n[server]\nurl = "http://127.0.0.1:8080"\n'
        f'[phone]\ntoken = "{MARK}"\n'
    )
    with pytest.raises(AgentConfigError, match="can be guessed") as caught:
        load(config, {})
    assert MARK not in "".join(traceback.format_exception(caught.value))


def test_a_store_and_a_database_are_named_without_their_login(tmp_path: Path) -> None:
    assert shown_url(f"s3://key:{MARK}@bucket/models?token={MARK}") == "s3://bucket/models"
    assert shown_url("file:///srv/blobs") == "file:///srv/blobs"
    with pytest.raises(ConfigError) as store:
        BlobStore(f"nosuch://key:{MARK}@bucket/models")
    database: Any = SecretStr(f"mysql://u:{MARK}@h/d")
    with pytest.raises(ConfigError) as checked:
        list(check(server.Settings(data_dir=tmp_path, database_url=database)))
    for caught in (store, checked):
        assert MARK not in "".join(traceback.format_exception(caught.value))
