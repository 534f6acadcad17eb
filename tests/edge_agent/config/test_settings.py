"""Settings: what is refused and how it is said, the environment, relative paths, and the example file."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.config.settings import Config, example, load
from edge_agent.errors import ConfigError
from gaitway.python310 import tomllib

GOOD = """
[agent]
device = "d1"
federation = "demo"
data_dir = "data"
[server]
url = "http://server:8000"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text)
    return path


def test_relative_folders_start_at_the_file(tmp_path: Path) -> None:
    config = load(written(tmp_path, GOOD + '[sensors]\nroot = "recordings"\n'), {})
    assert config.agent.data_dir == tmp_path / "data"
    assert config.sensors.root == tmp_path / "recordings"
    assert config.sensor_client == "d1"


def test_the_environment_goes_over_the_file(tmp_path: Path) -> None:
    broker = {"GAITWAY_EDGE_BROKER_HOST": "b", "GAITWAY_EDGE_BROKER_PORT": "1884"}
    environment = {**broker, "GAITWAY_EDGE_SERVER_URL": "https://other", "HOME": "/"}
    config = load(written(tmp_path, GOOD), environment)
    assert (config.broker.port, config.server.url) == (1884, "https://other")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD + "[brokker]\n", "did you mean 'broker'"),
        (GOOD + "[training]\nthread = 2\n", "did you mean 'threads'"),
        (GOOD + "[training]\nthreads = 0\n", "training.threads.*got 0"),
        (GOOD.replace("http://", "ftp://"), "server.url"),
        (GOOD.replace('device = "d1"', ""), "agent.device"),
        (GOOD.replace('"d1"', '"d/1"'), "agent.device.*d/1"),
        (GOOD + '[phone]\ntoken = "short"\n', "phone: .*5 characters can be guessed"),
        (GOOD + '[phone]\ntls_cert = "a.pem"\n', "tls_cert and tls_key go together"),
        ("[agent", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(written(tmp_path, text), {})


def test_an_unknown_variable_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'GAITWAY_EDGE_BROKER_PORT'"):
        load(written(tmp_path, GOOD), {"GAITWAY_EDGE_BROKER_PORTT": "1"})
    with pytest.raises(ConfigError, match="GAITWAY_EDGE_SENSORS_OPTIONS is not JSON"):
        load(written(tmp_path, GOOD), {"GAITWAY_EDGE_SENSORS_OPTIONS": "a b"})
    with pytest.raises(ConfigError, match="example-config"):
        load(tmp_path / "none.toml", {})


def test_the_example_is_valid_and_names_every_setting(tmp_path: Path) -> None:
    text = example()
    load(written(tmp_path, text), {})
    for section, field in Config.model_fields.items():
        for name in field.annotation.model_fields:
            assert f"{name} = " in text, (section, name)


def test_the_commented_defaults_are_the_defaults(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") if " = " in line else line for line in example().splitlines()[1:]]
    # an empty text stands for 'none', which TOML cannot say
    tree = tomllib.loads("\n".join(line for line in lines if '= ""' not in line))
    assert Config.model_validate(tree) == load(written(tmp_path, example()), {}).model_copy(
        update={"agent": Config.model_validate(tree).agent}
    )
