"""Checks which plans and methods a live server and phones can run secure sums for, and makes a cohort's request."""

from __future__ import annotations

import math
import secrets

from federation.errors import SettingsError
from federation.method import Method, SumMethod
from federation.methods import METHODS
from federation.methods.fedali import FedAli
from federation.methods.fedpr import FedPr
from federation.methods.fedproto import FedProto
from federation.methods.scaffold import Scaffold
from federation.plan import Plan, SecureSettings
from federation.privacy.discrete_gaussian import noisy_devices, share_of
from federation.secure_sums.messages import SumRequest
from federation.secure_sums.summation import SumLayout, check_secure, per_mille, vector_length
from federation.secure_sums.uploads import MAX_LIVE_MEMBERS

MAX_NOISY_NUMBERS = 1 << 16
"""Of exact sums, each of which a phone draws in some 20 µs."""


def check_live(plan: Plan, method: Method) -> None:
    """Refuse plans whose secure sums a server and its devices cannot carry out.

    Raises:
        SettingsError: naming the option, and what to do.
    """
    secure, rounds = plan.secure, plan.rounds
    if not secure.is_on:
        return
    where = f"secure.mode={secure.mode}"
    _check_live_noise(plan, method)
    check_secure(method, rounds, secure)
    if rounds.clients_per_round is not None and (invited := _invited(plan)) > MAX_LIVE_MEMBERS:
        raise SettingsError(
            f"{where}: a round invites {invited} devices, but a live sum has at most {MAX_LIVE_MEMBERS}; lower "
            "rounds.clients_per_round or rounds.over_selection"
        )
    needed, least = secure.min_devices * secure.groups, rounds.clients_per_round
    if least is not None and least < needed:
        groups = (
            f" in each of {secure.groups} groups (secure.groups), {secure.min_devices * secure.groups} in all"
            if secure.groups > 1
            else ""
        )
        raise SettingsError(
            f"{where}: a round has {least} devices (rounds.clients_per_round), a sum {secure.min_devices} at least "
            f"(secure.min_devices){groups}"
        )
    if rounds.sampling == "examples":
        raise SettingsError(
            f"{where}: the server doesn't know the number of a device's examples; set rounds.sampling=uniform"
        )


def _check_live_noise(plan: Plan, method: Method) -> None:
    """Refuse noise of devices that would protect nobody, of which no account is kept, or that takes them too long."""
    secure, option = plan.secure, f"secure.noise_multiplier={plan.secure.noise_multiplier:g}"
    if not secure.noise_multiplier:
        return
    if secure.mode != "masked":
        raise SettingsError(
            f"{option}: a device adds only its share of the noise, and with secure.mode={secure.mode} the server would "
            "see each device's numbers with that share alone; set secure.mode=masked"
        )
    if secure.clip_norm is None:
        raise SettingsError(f"{option} needs secure.clip_norm: without a bound, no noise is enough")
    size = plan.training.feature_dim + 1
    numbers = size * (size + 1) // 2 + size * plan.training.classes
    if isinstance(method, SumMethod) and numbers > MAX_NOISY_NUMBERS:
        raise SettingsError(
            f"{option}: {numbers:,} numbers would have noise, at most {MAX_NOISY_NUMBERS:,} are drawn on a device; use "
            "a network with fewer features (har_features with cosines=0 has 183)"
        )
    share_of(secure.noise_multiplier, secure.clip_norm, noisy_devices(secure))


def most_members(plan: Plan) -> int:
    """Return how many devices a round's sum has at most."""
    return MAX_LIVE_MEMBERS if plan.rounds.clients_per_round is None else _invited(plan)


def _invited(plan: Plan) -> int:
    return math.ceil((plan.rounds.clients_per_round or 0) * plan.rounds.over_selection)


def request_for(settings: SecureSettings, layout: SumLayout, devices: int, where: dict[str, object]) -> SumRequest:
    """Ask for the sum of a cohort of so many devices; `where` is the federation, its instance, the epoch and the round.

    Raises:
        SettingsError: if no ring holds the sum of so many.
    """
    return SumRequest.model_validate(
        {
            **where,
            "attempt": secrets.token_bytes(32),
            "length": vector_length(layout, settings),
            "groups": settings.groups,
            "bits": layout.bits_for(devices),
            "layout": layout.digest,
            "min_members": settings.min_devices,
            "colluding": per_mille(settings.colluding_share),
            "lost": per_mille(settings.lost_share),
        }
    )


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
