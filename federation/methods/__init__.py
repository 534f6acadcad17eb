"""The table of methods, and their JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from federation.errors import SettingsError, unknown_name
from federation.method import Method
from federation.methods.centralized import Centralized
from federation.methods.ditto import Ditto
from federation.methods.fedadam import FedAdam
from federation.methods.fedali import FedAli
from federation.methods.fedatt import FedAtt
from federation.methods.fedavg import FedAvg
from federation.methods.fedavgm import FedAvgM
from federation.methods.fedpac import FedPac
from federation.methods.fedper import FedPer
from federation.methods.fedpr import FedPr
from federation.methods.fedproto import FedProto
from federation.methods.fedproto_margin import FedProtoMargin
from federation.methods.fedprox import FedProx
from federation.methods.fedrep import FedRep
from federation.methods.fedyogi import FedYogi
from federation.methods.fesem import FeSem
from federation.methods.local import Local
from federation.methods.moon import Moon
from federation.methods.scaffold import Scaffold
from gaitway.errors import first_problem

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Local,
        Centralized,
        FedAvg,
        FedProx,
        FedAvgM,
        FedAdam,
        FedYogi,
        Scaffold,
        FedPer,
        FedRep,
        Ditto,
        FeSem,
        Moon,
        FedAtt,
        FedPac,
        FedProto,
        FedPr,
        FedProtoMargin,
        FedAli,
    )
}


def method_to_json(method: Method) -> dict[str, Any]:
    """Return {"name": …, every hyper-parameter}."""
    return {"name": method.name, **dataclasses.asdict(method)}


def method_from_json(description: Mapping[str, Any]) -> Method:
    """Build a method from its name and (some of) its hyper-parameters; numbers may come as text.

    Raises:
        SettingsError: for an unknown method or hyper-parameter, or a value that does not fit.
    """
    fields = dict(description)
    name = str(fields.pop("name", ""))
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    known = {field.name for field in dataclasses.fields(METHODS[name])}
    for key in fields:
        if key not in known:
            raise unknown_name(f"hyper-parameter of {name}", key, known)
    try:
        return TypeAdapter(METHODS[name]).validate_python(fields)
    except ValidationError as error:
        raise SettingsError(f"{name}: {first_problem(error, input_shown=True)}") from error
