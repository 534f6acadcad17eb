"""Runs a simulation as on a system without what only Unix, or only Linux, has: a program of its own, for a test.

Packages of others are imported first, since they have other code for such systems, which cannot run here.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

OURS = ("gaitway", "har_pipeline", "models", "federation", "export", "sim")
OTHERS = [
    "asyncio",
    "multiprocessing.pool",
    "multiprocessing.shared_memory",
    "concurrent.futures.process",
    "faulthandler",
    "torch",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.onnx",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pandas",
    "scipy.signal",
    "matplotlib.pyplot",
    "sklearn.ensemble",
    "PIL.Image",
    "typer",
    "rich.progress",
    "jinja2",
    "cryptography",
    "psutil",
    "safetensors.torch",
    "zstandard",
]
NOT_INSTALLED_BY_DEV = {"sim.results.mlflow"}
UNIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "curses"}
UNIX_NAMES = {
    os: "sched_getaffinity fork register_at_fork getuid geteuid getgid mkfifo sysconf getloadavg posix_fadvise fchmod "
    "chown killpg setsid nice memfd_create O_DIRECTORY O_NOFOLLOW O_CLOEXEC",
    signal: "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM setitimer pthread_sigmask",
}


class Missing:
    """Says of Unix's modules that they are not there."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name in UNIX_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide() -> None:
    """Take away what other systems lack."""
    for name in OTHERS:
        importlib.import_module(name)
    for name in UNIX_MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing)  # type: ignore[arg-type]
    for module, names in UNIX_NAMES.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)


def main(out: Path) -> None:
    """Import every module that a laptop needs, and run a federation."""
    hide()
    for name in OURS:
        for found in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            if not found.name.endswith("__main__") and found.name not in NOT_INSTALLED_BY_DEV:
                importlib.import_module(found.name)
    from sim.cli.app import app

    app(["run", "--preset", "synthetic-smoke", "--rounds", "1", "--out", str(out)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
