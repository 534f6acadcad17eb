"""Where one can look: the addresses of the pages, and what runs on for them after the end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from gaitway.progress import working
from gaitway.terminal import Console
from phones import say
from processes import INTERRUPT_GRACE_S, Child, Children, DemoError, free_port

LOOK_S = 1.0


def page_addresses(devices: tuple[str, ...]) -> dict[str, str]:
    """Return a free address for each device's own page."""
    found: dict[str, str] = {}
    while len(found) < len(devices):
        address = f"127.0.0.1:{free_port()}"
        if address not in found.values():
            found[devices[len(found)]] = address
    return found


def opening(console: Console, server: Path, http_port: int, pages: dict[str, str], *, stays: bool) -> None:
    """Say where to look while the federation runs; `server` is the server's folder."""
    say(console, "Look while it runs: the operator's page, by a link that logs one browser in, once:")
    _operators(console, server, http_port)
    _devices(console, pages)
    if not stays:
        say(console, "It ends with the demo; with DEMO_ARGS=--keep-running (or --keep-running) it stays until Ctrl-C.")


def stay(
    console: Console,
    children: Children,
    configs: dict[str, Path],
    server: Path,
    http_port: int,
    pages: dict[str, str],
) -> None:
    """Run the agents again for their pages, and wait until Ctrl-C.

    Raises:
        DemoError: if a program ends.
    """
    ended = list(children.started)
    for device, config in configs.items():
        children.start(f"page-{device}", "edge_agent", "run", "--config", str(config))
    console.rule("Everything stays until Ctrl-C")
    say(console, "The operator's page, for a browser that has not used the link above:")
    _operators(console, server, http_port)
    _devices(console, pages)
    try:
        while True:
            children.check(may_end=_finished(ended))
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        say(console, "Ending every process of the demo.")
        children.end(grace_s=INTERRUPT_GRACE_S)


def _finished(children: list[Child]) -> list[Child]:
    return [child for child in children if child.name.startswith("agent-")]


def _operators(console: Console, server: Path, http_port: int) -> None:
    words = ["login-link", "--data-dir", str(server), "--port", str(http_port), "--minutes", "720"]
    command = [sys.executable, "-m", "aggregator_api", *words]
    with working(console, "making the link"):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise DemoError(f"no link to the operator's page could be made: {made.stderr.strip()}")
    say(console, f"  {made.stdout.strip()}")


def _devices(console: Console, pages: dict[str, str]) -> None:
    for device, address in pages.items():
        say(console, f"  {device}: http://{address}/")
