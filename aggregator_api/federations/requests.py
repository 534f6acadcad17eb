"""What an operator asks of federations, validated."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from federation.plan import (
    Name,
    Plan,
    PromotionSettings,
    PublicationSettings,
    RolloutSettings,
    RoundSettings,
    Strict,
    live_incompatibility,
    with_packages,
)
from federation.protocol.messages import Sha256

_FIXED = (frozenset(Plan.model_fields) | {"name", "plan"}) - {"rounds", "publication", "rollout", "promotion"}


def _live(plan: Plan) -> Plan:
    if obstacle := live_incompatibility(plan):
        raise ValueError(obstacle)
    return with_packages(_without_screening(plan))


def _without_screening(plan: Plan) -> Plan:
    """Switch off the two rules about single updates that are on by default, where nobody asks for them.

    They would judge what a server with secure sums does not see.
    """
    if not plan.secure.is_on:
        return plan
    defaults = {"norm_factor": None, "max_weight_ratio": None}
    off = {name: value for name, value in defaults.items() if name not in plan.rounds.model_fields_set}
    return plan.model_copy(update={"rounds": plan.rounds.model_copy(update=off)})


class VersionReference(Strict):
    """A model version of a federation of this server."""

    federation: Name
    version: int | None = Field(default=None, ge=0, le=2**53, description="none: the one that the alias latest names")


class CheckpointReference(Strict):
    """A checkpoint that was uploaded to this server."""

    checkpoint: Sha256 = Field(description="sha256 of its bytes, as POST /v1/checkpoints answers it")


class NewFederation(Strict):
    """A federation to create."""

    name: Name
    plan: Annotated[Plan, AfterValidator(_live)]
    start_from: VersionReference | CheckpointReference | None = Field(
        default=None,
        description="weights to start from, but for the head, such as those that a federation without labels "
        "(task masked_reconstruction) has made; none: they are drawn from the plan's seed",
    )


class FederationChanges(Strict):
    """Changes of a federation's settings of rounds, publication, rollouts and promotion; others stay as they are."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    rounds: RoundSettings = RoundSettings()
    publication: PublicationSettings = PublicationSettings()
    rollout: RolloutSettings = RolloutSettings()
    promotion: PromotionSettings = PromotionSettings()

    @model_validator(mode="before")
    @classmethod
    def _only_settings(cls, given: Any) -> Any:
        fixed = sorted(set(given) & _FIXED) if isinstance(given, dict) else []
        if fixed:
            raise ValueError(f"{', '.join(fixed)} cannot change: devices work by it; create another federation")
        if isinstance(given, dict) and not given:
            raise ValueError("nothing is changed; give settings of `rounds`, `publication`, `rollout` or `promotion`")
        return given
