"""A plan out of a file, as commands take it by their option `--plan`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from federation.errors import SettingsError
from federation.plan import Plan
from gaitway.errors import first_problem
from gaitway.python310 import tomllib


def read_plan(path: Path) -> Plan:
    """Read a plan of TOML (by its name, *.toml) or JSON; also out of an answer of the server, `{"plan": …}`.

    Raises:
        SettingsError: if the file is not there or not a plan, naming the key.
    """
    try:
        text = path.read_text("utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--plan {path}: {error}; expected a plan in TOML or JSON") from error
    inner = found.get("plan", found) if isinstance(found, dict) else found
    try:
        return Plan.model_validate(inner)
    except ValidationError as error:
        raise SettingsError(f"--plan {path}: {first_problem(error, input_shown=True, model=Plan)}") from error
