"""Virtual environments for the peers that Gaitway is compared with, made at the first use and never a dependency."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

PEERS = {
    "pfl": ["pfl[pytorch]", "torch<=2.13"],
    "flwr": ["flwr[simulation]", "torch<=2.13"],
    "faiss": ["faiss-cpu", "numpy"],
}
"""What each environment holds; torch's bound keeps the builds for CPUs."""

HOME = Path(__file__).parent / ".peers"


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment, which is made if it is not there; this one, where it has it.

    Raises:
        subprocess.CalledProcessError: if the packages cannot be installed.
    """
    if find_spec(peer):
        return Path(sys.executable)
    folder = HOME / peer
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists():
        print(f"Installing {', '.join(PEERS[peer])} into {folder} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS[peer]], check=True)
        stamp.touch()
    return python
