"""What an error says to install is the Gaitway that runs, and no other package of that name."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from gaitway import own_packages


class Noted:
    """A distribution of which pip has noted where it came from."""

    def __init__(self, said: dict[str, Any] | str | None) -> None:
        self.said = said if isinstance(said, str) or said is None else json.dumps(said)

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.said


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ({"url": "file:///srv/gaitway-0.3.0-py3-none-any.whl", "archive_info": {}},
         "pip install 'gaitway[sim] @ file:///srv/gaitway-0.3.0-py3-none-any.whl'"),
        ({"url": "file:///srv/a%20checkout", "dir_info": {"editable": True}}, "pip install -e '/srv/a checkout[sim]'"),
        ({"url": "file:///srv/checkout", "dir_info": {}}, "pip install 'gaitway[sim] @ file:///srv/checkout'"),
        (None, "pip install 'gaitway[sim]'"),
        ("no JSON", "pip install 'gaitway[sim]'"),
    ],
)  # fmt: skip
def test_the_command_names_where_gaitway_came_from(
    said: dict[str, Any] | str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_packages, "distribution", lambda _: Noted(said))
    assert own_packages.install_command("sim") == command


def test_a_checkout_that_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(own_packages, "distribution", missing)
    assert own_packages.install_command("edge") == "pip install 'gaitway[edge]'"
