"""Check that a device without torch works on Python 3.10, which JetPack 6 has, with the oldest packages it may have.

    python deploy/check_python310.py [--python /path/to/python3.10]

Types of what a device runs are checked as of 3.10. Then, where an interpreter of 3.10 is found (on PATH or with pyenv),
`edge-lite` is installed for it into build/python310 (asks pip's index), each of its packages in the lowest version that
pyproject.toml allows, every module is imported, every test that imports there is run, and a device of that interpreter
takes part in a live federation. Says what was left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("gaitway", "har_pipeline", "models", "federation", "edge_agent", "export")
VENV = REPOSITORY / "build" / "python310"
TESTING = ("pytest>=8.2,!=9.2.0", "pytest-timeout", "hypothesis", "pandas>=2.2", "pillow>=10.3")
IMPORTED = """
import importlib, pkgutil, sys
from pathlib import Path
NEED = {"torch", "onnx", "onnxscript", "scipy", "sklearn", "httpx", "fastapi", "playwright", "prometheus_client"}
def imports(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEED:
            raise
        return False
    except ImportError as error:
        if "needs Python 3.11" not in str(error):
            raise
        return False
    return True
def modules(name):
    if not imports(name):
        return
    yield name
    for module in pkgutil.iter_modules(getattr(sys.modules[name], "__path__", ()), name + "."):
        if not module.name.endswith("__main__"):
            yield from modules(module.name)
for root in sys.argv[1:]:
    if root.startswith("tests"):
        for path in sorted(Path(root.replace(".", "/")).rglob("test_*.py")):
            above = [p / "conftest.py" for p in path.parents if (p / "conftest.py").is_file()]
            names = [".".join(p.with_suffix("").parts) for p in (*reversed(above), path)]
            if all(imports(name) for name in names):
                print(path)
    else:
        for name in modules(root):
            print(name)
"""


def interpreter(path: str | None) -> str | None:
    """Return the command of a Python 3.10 that starts; None without one."""
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv").glob("versions/3.10.*/bin/python"))
    found = [path] if path else [shutil.which("python3.10"), *map(str, reversed(pyenv))]
    query = [*("-c", "import sys; print(sys.version_info[:2] == (3, 10))")]
    for command in filter(None, found):
        done = subprocess.run([command, *query], capture_output=True, text=True, check=False)
        if done.stdout.strip() == "True":
            return command
    return None


def run(*command: str, **environment: str) -> str:
    """Run a command in the repository, and return what it printed; its errors go on to the terminal."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout[-6000:]}\n{' '.join(command)[:300]}: status {done.returncode}")
    return done.stdout


def check_types() -> None:
    """Check the types of what a device runs, as of 3.10: numpy's stubs are of a later one, and return Any there."""
    words = [word for package in PACKAGES for word in ("-p", package)]
    cache = str(REPOSITORY / ".mypy_cache" / "python310")
    options = ["--python-version", "3.10", "--disable-error-code", "no-any-return", "--cache-dir", cache]
    print(f"types: {run(sys.executable, '-m', 'mypy', *options, *words).strip()}", flush=True)


def lowest(*extras: str) -> list[str]:
    """Return the requirements of these extras, each pinned to its lower bound."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return [line.replace(">=", "==") for line in named if not line.startswith("gaitway[")]


def check_interpreter(python: str, marks: str, live: bool) -> None:
    """Install a device for this interpreter, and run it."""
    if not (VENV / "bin" / "python").is_file():
        run(python, "-m", "venv", str(VENV))
    ours = str(VENV / "bin" / "python")
    pins = lowest("edge-lite")
    run(ours, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", ".[edge-lite]", *pins, *TESTING)
    versions = run(ours, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    named = re.findall(r"^(?:numpy|onnxruntime|pydantic|cryptography)==.*$", versions, re.MULTILINE)
    print(run(ours, "-VV").strip(), *named, flush=True)
    imported = run(ours, "-c", IMPORTED, *(name for name in PACKAGES if name != "models")).split()
    print(f"imported: {len(imported)} modules", flush=True)
    tests = run(ours, "-c", IMPORTED, *(f"tests.{name}" for name in PACKAGES)).split()
    print(f"tests: {len(tests)} files that need neither torch nor a server", flush=True)
    print(_pytest(ours, "-m", marks, *tests), flush=True)
    if live:
        path = "tests/live/test_without_torch.py"
        print(f"live: {_pytest(sys.executable, '-m', '', path, GAITWAY_LITE_PYTHON=ours)}", flush=True)


def _pytest(python: str, *words: str, **environment: str) -> str:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return run(python, "-m", "pytest", *options, *words, **environment).strip().splitlines()[-1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Check what can be checked here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="an interpreter of 3.10")
    parser.add_argument("--skip-live", action="store_true", help="without the live federation")
    options = parser.parse_args(arguments)
    check_types()
    found = interpreter(options.python)
    if found is None:
        print("No Python 3.10 is here (on PATH or with pyenv): only types were checked.")
        return
    fast = "not slow and not ci and not service and not browser and not data and not gpu"
    check_interpreter(found, fast, not options.skip_live)


if __name__ == "__main__":
    main()
