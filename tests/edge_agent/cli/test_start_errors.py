"""What whoever installs a device gets wrong is answered by one sentence, with what to do, and exit code 2."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_agent.__main__ import app

# what the supervisor has opened by then ends with its process, which here is that of the tests
pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    yield
    gc.collect()


def config(folder: Path, data_dir: str = "data", broker: str = "", server: str = "http://127.0.0.1:9") -> Path:
    path = folder / "agent.toml"
    path.write_text(
        f'[agent]\ndevice = "d"\nfederation = "f"\ndata_dir = "{data_dir}"\n'
        f'[server]\nurl = "{server}"\n'
        '[broker]\nhost = "127.0.0.1"\n'
        f'port = 9\n{broker}\n[sensors]\ndataset = "synthetic"\n'
    )
    return path


def refused(*words: str, said: str, exit_code: int = 2) -> None:
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    told = result.stderr.strip()
    assert (result.exit_code, told.startswith("error: "), said in told) == (exit_code, True, True), result.output
    assert "\n" not in told


@pytest.mark.parametrize("command", ["run", "enrol"])
@pytest.mark.parametrize(("folder", "said"), [("file", "is a file"), ("/proc/gaitway", "mount what is missing")])
def test_a_data_dir_that_cannot_be_used(command: str, folder: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(command, "--config", str(config(tmp_path, folder)), said=said)


@pytest.mark.parametrize("command", ["run", "enrol", "status", "windows", "models"])
def test_a_config_file_that_is_missing_or_wrong(command: str, tmp_path: Path) -> None:
    refused(command, "--config", str(tmp_path / "none.toml"), said="write one with `python -m edge_agent")
    (tmp_path / "agent.toml").write_text("device s00")
    refused(command, "--config", str(tmp_path / "agent.toml"), said="is not valid TOML")


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        ('tls = true\nca_file = "none.pem"', "ca_file"),
        ('tls = true\nca_file = "agent.toml"', "cannot be read as PEM"),
        ('username = "d"\npassword_file = "none"', "password_file"),
    ],
)
def test_a_file_of_the_broker_that_cannot_be_read(broker: str, said: str, tmp_path: Path) -> None:
    refused("run", "--config", str(config(tmp_path, broker=broker)), said=said)


@pytest.mark.parametrize(("name", "said"), [("device.key", "enrol again"), ("credentials.json", "move it away")])
def test_a_key_or_credentials_that_are_damaged(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text("no such thing")
    refused("run", "--config", str(config(tmp_path)), said=said)


def test_a_token_that_cannot_be_read_and_a_server_that_is_not_there(tmp_path: Path) -> None:
    words = ["enrol", "--config", str(config(tmp_path)), "--token-file"]
    refused(*words, str(tmp_path / "none"), said="cannot be read")
    (tmp_path / "token").write_text("\n")
    refused(*words, str(tmp_path / "token"), said="contains no token")
    (tmp_path / "token").write_text(f"gwe_x_{0:032}\n")
    refused(*words, str(tmp_path / "token"), said="check [server] url", exit_code=1)


def test_an_enrolment_that_fails_leaves_no_config_file_and_names_that_differ_are_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"gwe_x_{0:032}\n")
    path, token = tmp_path / "new.toml", str(tmp_path / "token")
    names = ["--server", "http://127.0.0.1:9", "--federation", "walk", "--device", "phone1"]
    refused("enrol", "--config", str(path), "--token-file", token, *names, said="cannot reach", exit_code=1)
    assert not path.exists()
    known = str(config(tmp_path))
    refused("enrol", "--config", known, "--token-file", token, "--device", "other", said="leave out --device")
