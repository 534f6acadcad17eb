"""What the commands share: the config option, errors in words, the windows of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edge_agent.config import load
from edge_agent.errors import AgentError
from edge_agent.window_store import FILE_NAME, WindowStore

ConfigOption = Annotated[Path, typer.Option(help="The device's TOML file; write one with example-config.")]


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Turn an expected error into a red line and exit code 1."""
    try:
        yield
    except (AgentError, OSError) as error:
        Console(stderr=True).print(f"edge_agent: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


@contextmanager
def windows_of(config: Path) -> Iterator[WindowStore]:
    """Open the windows of the device that a config file describes; also while its agent runs.

    Raises:
        AgentError: if there are none yet.
    """
    folder = load(config).agent.data_dir
    if not (folder / FILE_NAME).is_file():
        raise AgentError(f"{folder} holds no windows yet; start the device with `python -m edge_agent run`")
    store = WindowStore(folder)
    try:
        yield store
    finally:
        store.close()
