"""Ctrl-C in programs: while they are loaded, while one of their commands imports, and while it works."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaitway.__main__ import PROGRAMS
from gaitway.errors import ExitCode

CTRL_C = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
"""A module that is interrupted while it is imported."""
PROGRAM = """
import os, signal, time, typer
from gaitway.interrupts import begin_loading, resumable, run_program
begin_loading()
app = typer.Typer()

@app.command()
def loads():
    try:
        import interrupted
    except BaseException:
        print("swallowed")

@app.command()
def ignores():
    os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
    if os.fork() == 0:
        os._exit(0)
    time.sleep(60)

@app.command()
def works():
    with resumable("The same command goes on."):
        print("begins", flush=True)
        time.sleep(60)

run_program(app)
"""


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Heed SIGINT below this test too, where a shell runs the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(*words: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{path}:{Path.cwd()}", "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)


LOADED = [*([program.module.partition(".")[0]] for program in PROGRAMS.values()), ["gaitway", "sim"]]


@pytest.mark.parametrize("words", LOADED, ids=" ".join)
def test_a_program_that_is_being_loaded_ends_without_a_traceback(words: list[str], tmp_path: Path) -> None:
    if sys.version_info < (3, 11) and {"aggregator_api", "sim"} & {*words}:
        pytest.skip("server and simulation need Python 3.11")
    (tmp_path / "typer.py").write_text(CTRL_C)  # every program imports it, and finds this one first
    ended = run("-m", *words, "--help", path=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_a_command_that_imports_ends_although_what_it_imports_swallows_interrupts(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(CTRL_C)
    ended = run("-c", PROGRAM, "loads", path=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (ExitCode.INTERRUPTED, "", "Interrupted.\n")


def test_an_interrupt_that_a_callback_of_fork_has_swallowed_is_sent_once_more(tmp_path: Path) -> None:
    ended = run("-c", PROGRAM, "ignores", path=tmp_path)
    assert (ended.returncode, ended.stderr) == (ExitCode.INTERRUPTED, "Interrupted.\n")


def test_a_command_at_work_says_how_to_go_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "works"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (ExitCode.INTERRUPTED, "Interrupted. The same command goes on.\n")
