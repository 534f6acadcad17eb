"""Checks of the machine: folder, disk, databases, memory, clock, and the start of a training process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from edge_agent.config.settings import Config
from edge_agent.config.training import TrainingDevice
from edge_agent.doctor.check_result import CheckResult, failure, ok, warning
from edge_agent.errors import StoreError
from edge_agent.storage.state_store import FILE_NAME as AGENT_FILE
from edge_agent.storage.state_store import StateStore
from edge_agent.storage.window_store import FILE_NAME as WINDOWS_FILE
from edge_agent.storage.window_store import WindowStore
from edge_agent.supervisor.status import describe_restore
from federation.protocol.messages import Runtime
from gaitway.files import private_folder
from gaitway.own_packages import install_command

MIN_UNIX_TIME = 1_795_000_000
"""November 2026, when this was written: a correct clock shows no less."""
TRAINING_DISK_MB = 1000.0
TRAINING_MEMORY_MB = 600.0
IMPORT_S = 120.0
NEEDED = {
    "torch": "import torch, onnx, onnxruntime, safetensors, scipy; loaded = f'torch {torch.__version__}'",
    "onnx": "import onnxruntime as ort, safetensors, zstandard; "
    "loaded = f'without torch, ONNX Runtime {ort.__version__}'",
}
PLACED = """
import json, sys
from edge_agent.training.limits import place
print(json.dumps([loaded, *place(sys.argv[1], sys.argv[2], 0)[1:]]))
"""
EXTRAS = {"torch": "edge", "onnx": "edge-lite"}


def folder_and_disk(config: Config) -> Iterator[CheckResult]:
    """Check that the data folder is writable, and its free space."""
    folder = config.agent.data_dir
    try:
        private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        yield failure("data folder", f"{folder} cannot be written: {error.strerror or error}", "set [agent] data_dir")
        return
    yield ok("data folder", f"{folder} can be written")
    free, least = shutil.disk_usage(folder).free / 1e6, config.windows.min_free_mb
    if free < least:
        yield failure("disk", f"{free:.0f} MB free: below [windows] min_free_mb, nothing is collected", "make room")
    elif free < TRAINING_DISK_MB:
        yield warning("disk", f"{free:.0f} MB free: enough to collect, not to train", "free 1 GB")
    else:
        yield ok("disk", f"{free / 1000:.1f} GB free")


def databases(config: Config) -> Iterator[CheckResult]:
    """Check that each database can be read completely."""
    folder = config.agent.data_dir
    for name, open_it, todo in (
        (AGENT_FILE, StateStore, "put a backup in its place; see docs/edge_agent.md"),
        (WINDOWS_FILE, WindowStore, "start the agent: it sets the file aside and saves what it can"),
    ):
        if not (folder / name).is_file():
            yield ok(name, "not there yet")
            continue
        try:
            with closing(open_it(folder)) as store:
                store.check()
        except StoreError as error:
            yield failure(name, str(error), todo)
        else:
            yield ok(name, f"whole, {(folder / name).stat().st_size / 1e6:.1f} MB")


def server_epoch(config: Config) -> Iterator[CheckResult]:
    """Report if the server was restored since this device joined, and what is trained again."""
    folder = config.agent.data_dir
    if not (folder / AGENT_FILE).is_file():
        return
    try:
        with closing(StateStore(folder)) as store:
            words = describe_restore(store)
    except StoreError:
        return  # the databases' check reported it
    if words:
        yield ok("server", words)


def config_file(path: Path, config: Config) -> CheckResult:
    """Check that others can't read the secrets in the config file."""
    secret = any((config.broker.password, config.phone.token, config.phone.mqtt_password))
    if secret and path.stat().st_mode & 0o077:
        return warning("config", f"{path} holds a password or token that others can read", f"chmod 600 {path}")
    return ok("config", f"{path} is valid")


def clock() -> CheckResult:
    """Check that the clock is plausible; check_server compares it with the server's."""
    now = time.time()
    if now < MIN_UNIX_TIME:
        year = time.gmtime(now).tm_year
        return failure(
            "clock", f"the clock is set to the year {year}", "set it, or enable NTP: timedatectl set-ntp true"
        )
    return ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %z"))


def memory(meminfo: Path = Path("/proc/meminfo")) -> CheckResult:
    """Check the memory available to a training process."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) / 1000
    except (OSError, KeyError, ValueError, IndexError):
        return warning("memory", f"{meminfo} doesn't show the free memory", "check it yourself: training needs 600 MB")
    if free < TRAINING_MEMORY_MB:
        return warning("memory", f"{free:.0f} MB free; training needs {TRAINING_MEMORY_MB:.0f}", "close other programs")
    return ok("memory", f"{free / 1000:.1f} GB free")


def training_process(runtime: Runtime = "torch", device: TrainingDevice = "cpu") -> CheckResult:
    """Check in a separate process that Python can load what training needs, and which processor it uses."""
    version = ".".join(map(str, sys.version_info[:3]))
    try:
        run = subprocess.run(
            [sys.executable, "-c", f"{NEEDED[runtime]}\n{PLACED}", runtime, device],
            capture_output=True,
            text=True,
            timeout=IMPORT_S,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return failure(
            "training", f"Python {version} cannot start another process: {error}", "free memory and try again"
        )
    if run.returncode:
        words = run.stderr.strip().splitlines()
        last = words[-1] if words else f"it ended with code {run.returncode}"
        return failure(
            "training",
            f"Python {version}: {last}",
            f"{install_command(EXTRAS[runtime])}; see docs/devices.md",
        )
    loaded, words, advice = json.loads(run.stdout.strip().splitlines()[-1])
    summary = f"Python {version}, {loaded}" + (f"; {words}" if words else "")
    return warning("training", summary, advice) if advice else ok("training", summary)
