"""Run the commands of docs/operations.md as they are written: from an empty Debian until a round is published.

    python deploy/walkthrough.py

Needs root, nginx, mosquitto and postgresql of Debian. Everything happens in namespaces of its own: the network has
nothing but a loopback, the file system's changes lie in memory and are gone afterwards. What stands in for what:

- `systemctl` and `systemd-run` are this file (`_Systemd`): they read the units and run what they say, as the user,
  with the environment and the state folder that they say; the units themselves go through `systemd-analyze verify`.
  Sandboxing directives (ProtectSystem …) are not applied.
- /opt/gaitway/source is the checkout, /opt/gaitway/bin/python the interpreter that runs this file.
- /etc/hosts names gaitway.example; the device ignores the machine's load, as a busy machine would never train.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from document_blocks import shell_blocks

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENT, MIN_BLOCKS = "docs/operations.md", 8
PROGRAMS = ("nginx", "mosquitto", "pg_createcluster", "unshare", "curl", "runuser", "systemd-analyze")
WITHIN_S = 540
OVERLAID = ("/etc", "/var", "/opt", "/root", "/usr/local")
STATE = Path("/run/gaitway-walkthrough")
UNITS = (Path("/etc/systemd/system"), Path("/lib/systemd/system"))


def main() -> int:
    """Dispatch: outside, inside of the namespaces, or as systemctl."""
    words = sys.argv[1:]
    if words[:1] == ["--systemctl"]:
        return _Systemd().systemctl(words[1:])
    if words[:1] == ["--systemd-run"]:
        return _Systemd().run_once(words[1:])
    if words[:1] == ["--inside"]:
        return _inside(Path(words[1]))
    path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    why = f"missing: {', '.join(missing)}" if missing else "" if os.geteuid() == 0 else "this user is not root"
    if why:
        print(f"THE WALKTHROUGH WAS NOT RUN: {why}; apt-get install nginx mosquitto postgresql systemd, as root")
        return 1 if os.environ.get("CI") == "true" and os.geteuid() == 0 else 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gaitway-walkthrough-") as scratch:
        spaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*spaces, sys.executable, __file__, "--inside", scratch]
        code = subprocess.run(command, check=False, timeout=WITHIN_S + 60, env={**os.environ, "PATH": path}).returncode
    print(f"the walkthrough took {time.monotonic() - begun:.0f} s and {'failed' if code else 'ended well'}")
    return code


def _inside(scratch: Path) -> int:
    _overlay(scratch)
    _stand_ins()
    script, commands = STATE / "document.sh", []
    blocks = list(shell_blocks(REPOSITORY / DOCUMENT))
    if sum(not block.not_run for block in blocks) < MIN_BLOCKS:
        raise SystemExit(f"{DOCUMENT} has lost most of the blocks that are to be run")
    for block in blocks:
        if block.not_run:
            print(f"not run, {block.name}: {block.not_run}")
            continue
        commands += [f"echo '== {block.name}: {block.heading}'", block.text]
    script.write_text("set -euo pipefail\n" + "\n".join(commands) + "\n")
    try:
        code = subprocess.run(
            ["bash", str(script)], check=False, timeout=WITHIN_S, cwd="/opt/gaitway/source"
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"not done after {WITHIN_S} s")
        code = 1
    code = code or _wrong_units() or _refused_bodies()
    for log in sorted(STATE.glob("*.log")) if code else ():
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
    return code


def _overlay(scratch: Path) -> None:
    """Lay memory over what the document changes."""
    _do("mount", "-t", "tmpfs", "none", str(scratch))
    (scratch / "source").mkdir()
    _do("mount", "--bind", str(REPOSITORY), str(scratch / "source"))
    for place in OVERLAID:
        upper, work = (scratch / f"{place.strip('/').replace('/', '-')}-{kind}" for kind in ("upper", "work"))
        upper.mkdir()
        work.mkdir()
        if Path(place).is_dir():
            _do("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={place},upperdir={upper},workdir={work}", place)
    Path("/root").chmod(0o711)  # an interpreter below it must be within reach of the services' users
    _do("mount", "-t", "tmpfs", "-o", "mode=755", "none", "/run")
    Path("/opt/gaitway/source").mkdir(parents=True)
    _do("mount", "--bind", str(scratch / "source"), "/opt/gaitway/source")
    _do("ip", "link", "set", "lo", "up")
    STATE.mkdir()


def _stand_ins() -> None:
    """Put the interpreter, systemd and a fresh PostgreSQL cluster where Debian and the document have them."""
    this = "/opt/gaitway/source/deploy/walkthrough.py"
    for path, words in (
        (Path("/opt/gaitway/bin/python"), "-P"),
        (Path("/usr/local/sbin/systemctl"), f"{this} --systemctl"),
        (Path("/usr/local/sbin/systemd-run"), f"{this} --systemd-run"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nPYTHONPATH=/opt/gaitway/source exec {sys.executable} {words} "$@"\n')
        path.chmod(0o755)
    with Path("/etc/hosts").open("a") as hosts:
        hosts.write("127.0.0.1 gaitway.example\n")
    os.environ["PATH"] = f"/usr/local/sbin{os.pathsep}{os.environ['PATH']}"
    shutil.rmtree("/etc/postgresql", ignore_errors=True)
    shutil.rmtree("/var/lib/postgresql", ignore_errors=True)
    Path("/var/lib/postgresql").mkdir()
    shutil.chown("/var/lib/postgresql", "postgres", "postgres")
    version = sorted(Path("/usr/lib/postgresql").iterdir())[-1].name
    _do("pg_createcluster", version, "main", "--", "--auth-local=peer", "--auth-host=scram-sha-256", "--no-sync")
    Path("/etc/nginx/sites-enabled/default").unlink(missing_ok=True)


def _wrong_units() -> int:
    units = [str(path) for path in Path("/etc/systemd/system").glob("*.service") if "gaitway" in path.read_text()]
    checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    complaints = [line for line in checked.stderr.splitlines() if "gaitway" in line or "edge-agent" in line]
    print("\n".join([f"systemd-analyze verify: {', '.join(Path(unit).name for unit in units)}", *complaints]))
    return 1 if complaints or len(units) != 2 else 0


def _refused_bodies() -> int:
    """Send the largest body of each kind through the proxy; the server itself says that it means nothing (422)."""
    key = Path("/var/lib/gaitway/operator.key").read_text().strip()
    script = (
        "head --bytes=$1 /dev/zero | curl --silent --insecure --output /dev/null --write-out '%{http_code}' "
        "--header @<(echo \"Authorization: Bearer $3\") --header 'Content-Type: application/octet-stream' "
        "--header 'Expect:' --data-binary @- https://gaitway.example$2"
    )
    wrong = 0
    for path, size in (("/v1/checkpoints", (256 << 20) + (1 << 20)), ("/v1/federations", 1 << 20)):
        command = ["bash", "-c", script, "bash", str(size), path, key]
        status = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        print(f"{size:,} bytes through nginx to {path}: {status}")
        wrong += status != "422"
    return int(wrong > 0)


def _do(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


class _Systemd:
    """What this document needs of systemd: units with drop-ins, users, state folders, the environment."""

    def systemctl(self, words: list[str]) -> int:
        """Start, stop, restart; everything else is accepted and does nothing."""
        verb, names = words[0], [word for word in words[1:] if not word.startswith("-")]
        for name in names:
            if verb in ("stop", "restart"):
                self._stop(name.removesuffix(".service"))
            if verb in ("start", "restart") or (verb == "enable" and "--now" in words):
                self._start(name.removesuffix(".service"))
        return 0

    def run_once(self, words: list[str]) -> int:
        """Run a command under the properties that are given, with this standard input."""
        unit: dict[str, list[str]] = {}
        while words[0].startswith("-"):
            if words.pop(0) == "-p":
                key, _, value = words.pop(0).partition("=")
                unit.setdefault(key, []).append(value)
        user, environment, umask = self._settled(unit)
        return subprocess.run(words, check=False, user=user, group=user, env=environment, umask=umask).returncode

    def _start(self, name: str) -> None:
        if name == "postgresql":
            version = next(Path("/etc/postgresql").iterdir()).name
            _do("pg_ctlcluster", version, "main", "start")
            return
        unit = self._read(name)
        user, environment, umask = self._settled(unit)
        with (STATE / f"{name}.log").open("ab") as log:
            for line in unit.get("ExecStartPre", []):
                subprocess.run(shlex.split(line.lstrip("-")), check=True, stdout=log, stderr=log)
            command = shlex.split(unit["ExecStart"][-1])
            if unit.get("Type") == ["forking"]:
                subprocess.run(command, check=True, stdout=log, stderr=log)
                return
            started = subprocess.Popen(
                command,
                user=user,
                group=user,
                extra_groups=[] if user else None,
                env=environment,
                umask=umask,
                cwd=(unit.get("WorkingDirectory") or ["/"])[-1],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        (STATE / f"{name}.pid").write_text(str(started.pid))
        time.sleep(0.5)
        if started.poll() is not None:
            raise SystemExit(f"{name} ended at once with {started.returncode}: {(STATE / f'{name}.log').read_text()}")

    @staticmethod
    def _stop(name: str) -> None:
        """Send SIGTERM, as systemd does, and wait until it is gone."""
        file = STATE / f"{name}.pid"
        if not file.exists():
            return
        process, deadline = int(file.read_text()), time.monotonic() + 60
        file.unlink()
        while Path(f"/proc/{process}/stat").exists() and ") Z " not in Path(f"/proc/{process}/stat").read_text():
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} did not stop")
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            time.sleep(0.5)

    @staticmethod
    def _read(name: str) -> dict[str, list[str]]:
        main = next(place / f"{name}.service" for place in UNITS if (place / f"{name}.service").is_file())
        unit: dict[str, list[str]] = {}
        for file in (main, *sorted((UNITS[0] / f"{name}.service.d").glob("*.conf"))):
            for key, value in re.findall(r"^([A-Za-z]+)=(.*)$", file.read_text(), re.M):
                unit[key] = [*unit.get(key, []), value] if value else []
        return unit

    @staticmethod
    def _settled(unit: dict[str, list[str]]) -> tuple[str | None, dict[str, str], int]:
        """Make the user and the folders that a unit asks for; return user, environment and umask."""
        user = (unit.get("User") or [None])[-1]
        if user and unit.get("DynamicUser") == ["yes"]:
            subprocess.run(["useradd", "--system", "--user-group", user], check=False, stderr=subprocess.DEVNULL)
        for name in unit.get("StateDirectory", []):
            folder = Path("/var/lib") / name
            folder.mkdir(exist_ok=True, mode=0o700)
            shutil.chown(folder, user, user)
        environment = {"PATH": os.environ["PATH"], "GAITWAY_EDGE_CONDITIONS_IGNORE": '["all"]'}
        for line in unit.get("Environment", []):
            environment.update(word.partition("=")[::2] for word in shlex.split(line))
        return user, environment, int((unit.get("UMask") or ["0022"])[-1], 8)


if __name__ == "__main__":
    sys.exit(main())
