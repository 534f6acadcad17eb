"""The table of methods, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federation.method import Method, SumMethod
from federation.methods.analytic import Analytic
from federation.methods.centralized import Centralized
from federation.methods.ditto import Ditto
from federation.methods.fedadam import FedAdam
from federation.methods.fedala import FedAla
from federation.methods.fedali import FedAli
from federation.methods.fedatt import FedAtt
from federation.methods.fedavg import FedAvg
from federation.methods.fedavgm import FedAvgM
from federation.methods.fedbabu import FedBabu
from federation.methods.fedpac import FedPac
from federation.methods.fedper import FedPer
from federation.methods.fedpr import FedPr
from federation.methods.fedproto import FedProto
from federation.methods.fedproto_margin import FedProtoMargin
from federation.methods.fedprox import FedProx
from federation.methods.fedrep import FedRep
from federation.methods.fedtgp import FedTgp
from federation.methods.fedyogi import FedYogi
from federation.methods.fesem import FeSem
from federation.methods.local import Local
from federation.methods.moon import Moon
from federation.methods.pfedfda import PFedFda
from federation.methods.scaffold import Scaffold
from federation.plan import Plan
from federation.plan.strict import described, from_description
from gaitway.plugins import EntryTable, named_subclass

METHODS: EntryTable[type[Method]] = EntryTable(
    "methods",
    {
        method.name: method
        for method in (
            Local,
            Centralized,
            FedAvg,
            FedProx,
            FedAvgM,
            Analytic,
            FedAdam,
            FedYogi,
            Scaffold,
            FedPer,
            FedRep,
            FedBabu,
            FedAla,
            PFedFda,
            Ditto,
            FeSem,
            Moon,
            FedAtt,
            FedPac,
            FedProto,
            FedTgp,
            FedPr,
            FedProtoMargin,
            FedAli,
        )
    },
    check=named_subclass(Method),
)


def method_to_json(method: Method) -> dict[str, Any]:
    """Return {"name": …, every hyper-parameter}."""
    return described(method.name, method)


def sums_in_rounds(plan: Plan) -> bool:
    """Whether a federation has secure rounds without end, to each of which devices add their whole sums."""
    return plan.secure.is_on and is_continuous(plan.method)


def is_continuous(description: Mapping[str, Any]) -> bool:
    """Whether a live federation of the method that a plan describes has no rounds with a cohort and a deadline."""
    name = str(description.get("name"))
    return name in METHODS and issubclass(METHODS[name], SumMethod)


def method_from_json(description: Mapping[str, Any]) -> Method:
    """Build a method from its name and (some of) its hyper-parameters; numbers may come as text.

    Raises:
        SettingsError: for an unknown method or hyper-parameter, or a value that does not fit.
    """
    return from_description("method", "hyper-parameter", METHODS, description)
