"""What the commands share: the config option, errors in words, the windows of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edge_agent.config.settings import load
from edge_agent.errors import AgentError, ConfigError
from edge_agent.storage.window_store import FILE_NAME, WindowStore

ConfigOption = Annotated[Path, typer.Option(help="The device's TOML file; write one with example-config.")]


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Turn an expected error into a red line and an exit code, see `refused`."""
    try:
        yield
    except (AgentError, OSError) as error:
        raise refused(error) from None


def refused(error: AgentError | OSError) -> typer.Exit:
    """Say why the program ends; the exit code is 2 where a setting or a file of the operator's is wrong, else 1."""
    Console(stderr=True).print(f"edge_agent: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(2 if isinstance(error, ConfigError) else 1)


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
