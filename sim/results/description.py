"""What a run is, as `config.json` and `plan.json` keep it, and whether a run that resumes is still the same.

Digests of the classes that a run computes with show that a method or a network was edited. A digest is of compiled
code, so comments, docstrings and formatting don't count, and a notebook's cells need no source file. It covers what the
class's code uses of its own module: functions, classes and plain constants. Other modules are not followed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError

from federation.methods import method_from_json, method_to_json
from federation.methods.fedali import GLOBAL, LOCAL
from federation.plan import DataStatistics, Plan, image_input, with_packages
from gaitway.files import write_json
from gaitway.own_packages import is_own_module
from models import MODELS
from sim.data.federated_data import FederatedData
from sim.errors import RunDirectoryError, SettingsError
from sim.experiment.networks import RunPlan
from sim.experiment.settings import ENVIRONMENT, Experiment

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "typing_extensions"}) - {"__main__"}


def code_digests(classes: Iterable[type]) -> dict[str, str]:
    """Return the digest of each class, and of its bases outside Gaitway and the libraries, by its name."""
    found = {_name(kind): _digest(kind) for listed in classes for kind in _counted(listed)}
    return dict(sorted(found.items()))


def _counted(listed: type) -> Iterator[type]:
    """Yield the class, and those of its bases that no version of a package stands for."""
    for kind in listed.__mro__:
        top = kind.__module__.partition(".")[0]
        if kind is listed or not (top in _LIBRARIES or is_own_module(kind.__module__)):
            yield kind


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _digest(kind: type) -> str:
    parts: dict[str, list[str]] = {}
    _read(kind, kind.__module__, parts)
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


def _read(thing: Any, module: str, parts: dict[str, list[str]]) -> None:
    """Take down a class or a function of this module, and what it uses of it."""
    if not isinstance(thing, type | FunctionType) or thing.__module__ != module or _name(thing) in parts:
        return
    lines = parts[_name(thing)] = []
    if isinstance(thing, type):
        for name, value in vars(thing).items():
            _read_attribute(name, value, module, lines, parts)
        for base in thing.__bases__:
            _read(base, module, parts)
    else:
        _read_function(thing, module, lines, parts)


def _read_attribute(name: str, value: Any, module: str, lines: list[str], parts: dict[str, list[str]]) -> None:
    # of a static or class method, a property, and a cached property
    inner = next((found for key in ("__func__", "fget", "func") if (found := getattr(value, key, None))), value)
    if isinstance(inner, type):
        _read(inner, module, parts)
    elif isinstance(inner, FunctionType):
        if inner.__code__.co_filename != "<string>":  # which a dataclass makes of its fields
            lines.append(name)
            _read_function(inner, module, lines, parts)
    elif not name.startswith("__") and _is_plain(inner):
        lines.append(f"{name}={_plain(inner)}")


def _read_function(function: FunctionType, module: str, lines: list[str], parts: dict[str, list[str]]) -> None:
    lines += _code_lines(function.__code__, function.__doc__)
    defaults = (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items()))
    lines += [_plain(value) for value in defaults if _is_plain(value)]
    used = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
        used[name] = cell.cell_contents
    used["__wrapped__"] = getattr(function, "__wrapped__", None)
    for name, value in sorted(used.items()):
        if _is_plain(value) and not name.startswith("__"):
            lines.append(f"{name}={_plain(value)}")
        _read(value, module, parts)


def _code_lines(code: CodeType, documentation: str | None) -> list[str]:
    lines = [code.co_code.hex(), repr((code.co_names, code.co_varnames, code.co_freevars))]
    for value in code.co_consts:
        if isinstance(value, CodeType):
            first = value.co_consts[0] if value.co_consts else None
            lines += _code_lines(value, first if isinstance(first, str) else None)
        elif value != documentation or value is None:
            lines.append(_plain(value))
    return lines


def _names(code: CodeType) -> set[str]:
    inner = (_names(value) for value in code.co_consts if isinstance(value, CodeType))
    return set(code.co_names).union(*inner)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _plain(value: Any) -> str:
    """Write a constant the same way in every process: a set has another order in each."""
    return f"frozenset({sorted(map(repr, value))})" if isinstance(value, frozenset) else repr(value)


VOLATILE = ENVIRONMENT | {
    *("versions", "hardware", "parameters", "split_leaks", "findings", "partition_class_names"),
    *("data_sha256", "code"),  # `check_unchanged` compares these
}
"""Keys of config.json that may differ when a run is resumed."""
AFRESH = "choose another directory, or delete that one to begin again (resume=False in Python)"


class RunOrigin(NamedTuple):
    """What a run's numbers follow from: its data, code and machine, as config.json has them, and who has how much."""

    config: dict[str, Any]
    clients: dict[str, Any]


def origin_of(plan: RunPlan, data: FederatedData) -> RunOrigin:
    """Find out what a run's numbers follow from besides its settings."""
    digest, clients = data.sha256(), data.per_class(plan.task)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    networks = {MODELS[spec.name] for spec in plan.settings.models if spec.name in MODELS}
    config = {
        "data_sha256": digest,
        "code": code_digests({*networks, type(plan.method), type(plan.task)}),
        "versions": {**versions, "gaitway": _own_version()},
        "hardware": _hardware(plan.settings.device),
    }
    return RunOrigin(config, clients)


def write_description(out: Path, plan: RunPlan, data: FederatedData) -> None:
    """Write config.json, plan.json and clients.json.

    Raises:
        RunDirectoryError: if the directory belongs to another configuration, or to other data or code.
    """
    origin, initial = origin_of(plan, data), plan.networks[0].initial
    prototypes = sum(v.numel() for n, v in initial.buffers.items() if n.endswith((LOCAL, GLOBAL)))
    config = {
        **plan.settings.model_dump(mode="json", by_alias=True),
        "split_leaks": data.split_leaks,
        "findings": data.findings,
        "partition_class_names": data.partition_class_names,
        "parameters": {"trained": sum(v.numel() for v in initial.params.values()), "prototypes": prototypes},
        **origin.config,
    }
    path = out / "config.json"
    if path.exists():
        old = json.loads(path.read_text())
        _compare(_with_new_defaults(old), config, out)
        check_unchanged(old, origin, out)
    carried_out = plan_for(plan.settings, data)
    write_json(path, config)
    write_json(out / "plan.json", carried_out.model_dump(mode="json"))
    write_json(out / "clients.json", origin.clients)


def check_unchanged(old: dict[str, Any], now: RunOrigin, out: Path) -> None:
    """Compare a run's data and code, as its config.json has them, with those of today.

    Raises:
        RunDirectoryError: if they have changed since the run began.
    """
    _check_data(old, now, out)
    _check_code(old, now.config, out)


def settings_in(config: dict[str, Any]) -> Experiment:
    """Return the settings of a run's config.json.

    Raises:
        ValidationError: if this version does not have them.
        SettingsError: likewise.
    """
    names = {field.alias or name for name, field in Experiment.model_fields.items()}
    return Experiment.model_validate({name: value for name, value in config.items() if name in names})


def plan_for(settings: Experiment, data: FederatedData) -> Plan:
    """Return the plan that a server and its devices carry out: with images' shape, and federated statistics."""
    plan = with_packages(Plan(**{name: getattr(settings, name) for name in Plan.model_fields}))
    found: dict[str, Any] = {}
    if plan.data.normalization == "federated" and plan.data.statistics is None:
        found["statistics"] = DataStatistics.model_validate(next(iter(data.statistics.values())).to_json())
    if plan.data.input is None and data.image_shape is not None:
        found["input"] = image_input(data.image_shape, data.fit)
    return plan.model_copy(update={"data": plan.data.model_copy(update=found)}) if found else plan


def _with_new_defaults(old: dict[str, Any]) -> dict[str, Any]:
    """Give a run of an earlier version the keys that settings have had since, whose defaults keep its meaning."""
    try:
        settings = settings_in(old)
    except (ValidationError, SettingsError):
        return old  # of settings that this version does not have: the comparison says which
    method = method_to_json(method_from_json(settings.method))
    return {**old, **settings.model_dump(mode="json", by_alias=True), "method": method}


def _compare(old: dict[str, Any], config: dict[str, Any], out: Path) -> None:
    before, now = ({k: v for k, v in settings.items() if k not in VOLATILE} for settings in (old, config))
    if difference := next(_differences(before, now), None):
        key, was, wanted = difference
        raise RunDirectoryError(
            f"{out} holds a run with {key} = {was!r}, this one has {wanted!r}; "
            "choose another --out, or delete that directory to begin again"
        )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name and both values of each key that differs, a method's or model's name before its options."""
    for key in sorted(before.keys() | now.keys(), key=lambda key: (key != "name", key)):
        was, wanted = before.get(key), now.get(key)
        if isinstance(was, dict) and isinstance(wanted, dict):
            yield from ((f"{key}.{name}", *values) for name, *values in _differences(was, wanted))
        elif json.dumps(was) != json.dumps(wanted):
            yield key, was, wanted


def _check_data(old: dict[str, Any], now: RunOrigin, out: Path) -> None:
    """Refuse other examples; where another machine or library may have rounded otherwise, other counts of them."""
    if old.get("data_sha256") == now.config["data_sha256"]:
        return
    path = out / "clients.json"
    if _environment(old) != _environment(now.config) and path.exists() and json.loads(path.read_text()) == now.clients:
        return
    raise RunDirectoryError(
        f"{out} holds a run on other data: since it began, the recordings have changed, or how they are read; {AFRESH}"
    )


def _environment(config: dict[str, Any]) -> tuple[Any, str]:
    """Return the versions and the kind of processor, without the number of threads."""
    return config.get("versions"), str(config.get("hardware")).partition(",")[0]


def _check_code(old: dict[str, Any], config: dict[str, Any], out: Path) -> None:
    """Refuse edited classes; compiled code differs between Python's versions, and ours between Gaitway's."""
    before, now = old.get("versions", {}), config["versions"]
    if _minor(before.get("python", "")) != _minor(now["python"]):
        return
    same_version = before.get("gaitway") == now["gaitway"]
    for name, digest in config["code"].items():
        is_compared = same_version or not is_own_module(name)
        if is_compared and old.get("code", {}).get(name, digest) != digest:
            raise RunDirectoryError(f"{out} holds a run that began before the code of {name} was edited; {AFRESH}")


def _minor(version_number: str) -> list[str]:
    return version_number.split(".")[:2]


def _hardware(device: str) -> str:
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"  # other kernels round otherwise
    where = f"{processor}, {torch.get_num_threads()} torch threads, {platform.system()}"
    return f"{where}, {torch.cuda.get_device_name(device)}" if torch.device(device).type == "cuda" else where


def _own_version() -> str:
    try:
        return version("gaitway")
    except PackageNotFoundError:
        return "not installed"
