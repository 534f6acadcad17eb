"""Which methods a phone's browser can add up in the secure sum of a round.

`phone/app/secure_sums/summand.js` computes the summands of these classes, and no others.
"""

from __future__ import annotations

from federation.method import Method
from federation.methods import METHODS
from federation.methods.fedali import FedAli
from federation.methods.fedpr import FedPr
from federation.methods.fedproto import FedProto
from federation.methods.scaffold import Scaffold


def phone_sum_groups() -> dict[str, list[str]]:
    """Return, for each method that a phone can add up, the groups of its summand in their order."""
    known = {kind.summand for kind in (Method, Scaffold, FedProto, FedPr, FedAli)}
    adding_up: dict[str, Method] = {"fedali": FedAli(clustering="one_step"), "fedproto": FedProto(average_over="round")}
    return {
        name: list(method.sum_groups)
        for name, method in METHODS.items()
        if method.summand in known
        and ("weight" not in method.sum_groups or method.weight is Method.weight)
        and not adding_up.get(name, method()).sum_incompatibility
    }
