"""A training process ends with its supervisor, whatever it is busy with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUPERVISOR = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""
LIMITED = "from edge_agent.training.entrypoint import exit_with_supervisor; exit_with_supervisor(); "
NEVER_LETS_GO = LIMITED + "import itertools; print('busy', flush=True); any(itertools.repeat(False))"
OUT_OF_MEMORY = (
    LIMITED
    + """
import resource
resource.setrlimit(resource.RLIMIT_DATA, (1 << 20, 1 << 20))
print('busy', flush=True)
while True:
    try:
        bytearray(1 << 24)
    except MemoryError:
        pass
"""
)
STARTS_LATE = "import time; print('busy', flush=True); time.sleep(2.0); " + LIMITED + "time.sleep(600)"


def is_running(pid: int) -> bool:
    """Whether the process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.ci
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes by /proc")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(NEVER_LETS_GO, id="in a loop of C that holds the interpreter"),
        pytest.param(OUT_OF_MEMORY, id="without memory"),
        pytest.param(STARTS_LATE, id="still starting"),
    ],
)
def test_it_ends_when_its_supervisor_is_killed(program: str) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, program], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    pid = int(supervisor.stdout.readline())
    try:
        assert supervisor.stdout.readline() == "busy\n"
        assert is_running(pid)
        supervisor.kill()
        supervisor.wait()
        limit = time.monotonic() + 60.0
        while is_running(pid) and time.monotonic() < limit:
            time.sleep(0.05)
        assert not is_running(pid)
    finally:
        supervisor.stdout.close()
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
