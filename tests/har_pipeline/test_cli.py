"""The command line teaches, shows and refuses; and importing the package stays light."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gaitway.own_packages import install_command
from har_pipeline import dataset_names
from har_pipeline.cli import app
from tests.har_pipeline import layouts

DESCRIPTION = """
files = '(?P<activity>walk)\\.csv'
labels = ["walk", "run"]
time = { column = "t", unit = "s" }
acceleration = "specific force"
acc = { columns = ["ax", "ay", "az"], unit = "m/s2" }
"""
WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setattr("har_pipeline.cli.console.width", 200)

    def invoke(*arguments: str):
        return CliRunner().invoke(app, list(arguments), env=WIDE)

    return invoke


def test_help_teaches_with_examples(call):
    assert "prepare" in call("--help").output
    text = call("prepare", "--help").output
    assert "python -m har_pipeline prepare synthetic" in text
    assert all(name in text for name in dataset_names())


def test_info_lists_every_set_and_describes_one(call, tmp_path):
    listing = call("info").output
    assert all(name in listing for name in dataset_names())
    layouts.unpacked(layouts.motionsense(), tmp_path)
    text = call("info", "motionsense", "--data-root", str(tmp_path)).output
    assert "4 files" in text
    assert '"stride": 64' in text
    assert "climbingup" in call("info", "combined").output
    merged = [line.replace("│", " ").split() for line in call("info", "union").output.splitlines()]
    assert ["sitting", "sit", "SITTING", "SEATED"] in merged
    assert ["turning", "TURNING"] in merged
    assert call("info", "described").exit_code == 0


def test_prepare_counts_windows_and_the_second_run_is_the_same(call, tmp_path):
    arguments = [
        "prepare",
        "synthetic",
        "--cache",
        str(tmp_path),
        "--options",
        json.dumps({"subjects": 1, "minutes": 1}),
    ]
    first = call(*arguments)
    assert first.exit_code == 0, first.output
    assert "s00_phone200-waist" in first.output
    assert "2 clients" in first.output
    windows = next(line for line in call(*arguments).output.splitlines() if "clients," in line)
    assert windows.split(" in ")[0] in first.output
    fewer = call(*arguments, "--client", "s00_phone100-waist", "--stride", "128", "--label-share", "0.9")
    assert "1 clients" in fewer.output


def test_refusals_are_one_line_and_exit_with_2(call, tmp_path):
    result = call("prepare", "motionsens")
    assert result.exit_code == 2
    assert "did you mean 'motionsense'" in result.output
    result = call("info", "spsw", "--data-root", str(tmp_path))
    assert result.exit_code == 2
    assert "DATA/sXX/sXX_YY" in result.output.replace("\n", "")
    assert call("prepare", "synthetic", "--options", "{").exit_code == 2
    assert call("prepare", "synthetic", "--options", "[]").exit_code == 2


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"subjects": ' + "1" * 5000 + "}", "[1]"], ids=len)
def test_options_that_are_no_json_object_are_refused(call, text):
    done = call("prepare", "synthetic", "--options", text)
    assert (done.exit_code, "JSON" in done.output, "Traceback" in done.output) == (2, True, False)


def test_importing_the_package_loads_neither_pandas_nor_torch_nor_typer():
    heavy = ("torch", "pandas", "typer", "rich", "scipy")
    code = f"import sys, har_pipeline; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_module_runs(tmp_path):
    done = subprocess.run([sys.executable, "-m", "har_pipeline", "info"], capture_output=True, text=True, check=True)
    assert "motionsense" in done.stdout


def test_a_refusal_is_a_sentence_without_a_class_name(call, tmp_path):
    ended = call("prepare", "motionsense", "--data-root", str(tmp_path))
    assert ended.exit_code == 2
    assert ended.stderr.startswith("error: ")
    assert "SourceError" not in ended.stderr


@pytest.mark.parametrize("words", [["describe"], ["prepare", "--describe"]])
def test_without_pandas_it_says_what_to_install(call, tmp_path, monkeypatch, words):
    (tmp_path / "walk.csv").write_text("t,ax,ay,az\n" + "".join(f"{k / 50},0.1,0.2,9.8\n" for k in range(400)))
    (tmp_path / "data.toml").write_text(DESCRIPTION)
    words = (
        [*words, str(tmp_path / "data.toml"), "--data-root", str(tmp_path)] if words[1:] else [*words, str(tmp_path)]
    )
    monkeypatch.setitem(sys.modules, "pandas", None)
    ended = call(*words)
    assert ended.exit_code == 2, ended.output
    assert f"this needs pandas, which is not installed: {install_command('runtime')}" in ended.stderr.replace("\n", " ")
