"""Named starting points: the papers' experiments, and sizes that a laptop finishes."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from gaitway.errors import closest
from sim.errors import SettingsError
from sim.presets.preset import Options, Preset, merge_options, read_presets

__all__ = ["PRESETS", "Preset", "preset_named", "with_defaults"]

FILES = ("small_data", "ek2024", "tan2022", "qiao2023", "michieli2021")
PRESETS: dict[str, Preset] = {
    name: preset
    for file in FILES
    for name, preset in read_presets(files(__name__).joinpath(f"{file}.toml").read_text("utf-8")).items()
}


def with_defaults(preset: str | None, given: Options, plan: Options | None = None) -> dict[str, Any]:
    """Return all options of a run: those given, else the plan's or the preset's for that method, else the defaults.

    Raises:
        SettingsError: for an unknown preset, one beside a plan, or one that starts from pretrained weights where none
            are given.
    """
    if preset is None:
        return merge_options(None, given, plan)
    if plan is not None:
        raise SettingsError("--preset and --plan both describe a whole federation; give only one")
    chosen = preset_named(preset)
    options = merge_options(chosen, given)
    command = chosen.pretraining_command(preset, options["method"], options["model"])
    if command and options["init"] is None:
        raise SettingsError(
            f"this preset starts from pretrained weights: give --init FILE, which this makes: {command}"
        )
    return options


def preset_named(name: str) -> Preset:
    """Return a preset; SettingsError, with the nearest name, where there is none."""
    if name not in PRESETS:
        near = closest(name, PRESETS)
        meant = f"did you mean {near!r}? " if near else ""
        raise SettingsError(f"unknown preset {name!r}; {meant}`sim presets` lists them")
    return PRESETS[name]
