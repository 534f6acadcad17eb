"""Whom a run holds out as new users, and how many epochs each of them personalizes for."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from federation.plan import Strict
from gaitway.errors import first_problem
from sim.errors import SettingsError

KINDS = ("leave-subjects-out", "leave-devices-out", "leave-clients-out")
FOLD = r"^1/[1-9][0-9]{0,3}$"


class Holdout(Strict):
    """Whom to hold out: so many, drawn by the seed; the named ones; or 1/K, one of K groups of all, by the seed.

    In a name `*` stands for any letters: `ucihar-*` are all subjects of one set of several.

    The groups are the same whatever the seed: seeds 0 to K − 1 hold everybody out once, as in a cross-validation.
    """

    kind: Literal["leave-subjects-out", "leave-devices-out", "leave-clients-out"]
    out: int | Annotated[str, Field(pattern=FOLD)] | tuple[str, ...] = Field(
        description="how many, 1/K, or their names"
    )
    epochs: int = Field(default=20, ge=1, description="epochs of a new client's personalization")
    known_classes: bool = Field(
        default=False, description="score them only on examples of classes that some member's training examples have"
    )
    worse_sensors: bool = Field(
        default=False, description="score them with worse sensors, too (`sim.data.other_phones`)"
    )


def holdout(text: str | None, options: dict[str, Any]) -> Holdout | None:
    """Read `KIND:K` or `KIND:NAME,NAME…`; raises SettingsError."""
    if text is None:
        if options:
            raise SettingsError(f"--set holdout.{next(iter(options))}: there is no --holdout to set it of")
        return None
    kind, colon, out = text.partition(":")
    if kind not in KINDS or not (colon and out):
        raise SettingsError(f"--holdout {text!r}: expected {'|'.join(KINDS)}, a colon, and how many, 1/K, or whom")
    # one subject called 3 is "3,"
    whom = int(out) if out.isdigit() else out if re.match(FOLD, out) else tuple(filter(None, out.split(",")))
    try:
        return Holdout.model_validate({"kind": kind, "out": whom, **options})
    except ValidationError as error:
        raise SettingsError(f"holdout.{first_problem(error, input_shown=True, model=Holdout)}") from error
