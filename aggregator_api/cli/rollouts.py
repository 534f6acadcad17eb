"""`python -m aggregator_api rollouts …`: on the database itself; a running server announces within a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aggregator_api.cli.session import (
    HERE,
    ServerPlace,
    date,
    get_federation,
    new_app,
    note,
    print_table,
    reading,
    writing,
)

if TYPE_CHECKING:
    from federation.rounds.rollout import Event

app = new_app("Release a model version to devices, wave by wave.")
FederationOption = Annotated[str, typer.Option("--federation", help="The federation whose devices get the model.")]
Number = Annotated[int, typer.Argument(help="The rollout's number, as shown by `rollouts list`.", min=1)]


@app.command()
def start(
    federation: FederationOption,
    version: Annotated[int | None, typer.Option("--version", min=0, help="Model version (default: newest).")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Group of devices for the first wave; repeatable.")
    ] = None,
    force: Annotated[
        str, typer.Option(help="Reason for releasing regardless of the devices' scores (default: the scores decide).")
    ] = "",
    place: ServerPlace = HERE,
) -> dict[str, int]:
    """Release a version in the plan's waves; with `--tag`, to these groups first.

    Example: `python -m aggregator_api rollouts start --federation walk --version 3 --tag pilot`
    """
    from aggregator_api.rollouts import service, transitions  # torch takes a second, and --help doesn't need it
    from aggregator_api.rollouts.service import NewRollout

    with writing(place) as session:
        row = get_federation(session, federation)
        planned = transitions.settings_of(row).model_dump()["waves"]
        waves = [{"tags": tag}, *planned] if tag else None
        override = {"force": bool(force), "reason": force}
        new = NewRollout.model_validate({"version": version, "waves": waves, **override})
        begun = service.begin(session, row, new, time.time())
        detail = f"rollout {begun.number}, version {begun.version.version}" + (
            f", {' '.join(tag)} first" if tag else ""
        )
        detail += f", forced: {force}" if force else ""
        note(session, "rollouts.start", federation=federation, detail=detail)
        result = {"number": begun.number, "version": begun.version.version, "members": begun.members}
    typer.echo(f"{detail}: {result['members']} devices in the first wave")
    return result


@app.command("list")
def list_rollouts(
    federation: FederationOption,
    place: ServerPlace = HERE,
) -> list[dict[str, Any]]:
    """List the rollouts, oldest first.

    Example: `python -m aggregator_api rollouts list --federation walk`
    """
    found = _listed(federation, place)
    rows = []
    for rollout in found:
        goes_to = " ".join(rollout["tags"]) or f"{rollout['share']:.0%}"
        counts = (rollout["members"], rollout["successes"], rollout["failures"])
        cells = (
            rollout["number"],
            rollout["version"],
            rollout["phase"],
            f"{rollout['wave']} of {rollout['waves']}",
            goes_to,
            *counts,
        )
        rows.append((*cells, date(rollout["started_at"])))
    columns = ("rollout", "version", "phase", "wave", "goes to", "devices", "good", "failed", "began (UTC)")
    print_table(columns, rows)
    return found


@app.command()
def pause(federation: FederationOption, number: Number, place: ServerPlace = HERE) -> None:
    """Pause a rollout: no further wave begins, but too many failing devices still halt it.

    Example: `python -m aggregator_api rollouts pause --federation walk 3`
    """
    from federation.rounds.rollout import Paused

    _move("pause", federation, number, Paused(), place)


@app.command()
def resume(federation: FederationOption, number: Number, place: ServerPlace = HERE) -> None:
    """Resume a paused rollout; the current wave starts again.

    Example: `python -m aggregator_api rollouts resume --federation walk 3`
    """
    from federation.rounds.rollout import Resumed

    _move("resume", federation, number, Resumed(time.time()), place)


@app.command()
def halt(federation: FederationOption, number: Number, place: ServerPlace = HERE) -> None:
    """Halt a rollout, even a completed one: every device that uses the version returns to its previous model.

    Example: `python -m aggregator_api rollouts halt --federation walk 3`
    """
    from federation.rounds.rollout import Halted

    _move("halt", federation, number, Halted("halted by the operator"), place)


def _listed(federation: str, place: ServerPlace) -> list[dict[str, Any]]:
    from sqlalchemy import select

    from aggregator_api.http.queries.rollouts import described
    from aggregator_api.storage.db.models import RolloutRow

    with reading(place) as session:
        row = get_federation(session, federation)
        query = select(RolloutRow).where(RolloutRow.federation_id == row.id).order_by(RolloutRow.number)
        return [described(row).model_dump() for row in session.scalars(query)]


def _move(verb: str, federation: str, number: int, event: Event, place: ServerPlace) -> None:
    from aggregator_api.rollouts import service, transitions

    with writing(place) as session:
        row = get_federation(session, federation)
        service.move(session, row, number, event, time.time())
        moved = transitions.numbered(session, row, number)
        phase = moved.phase if moved else ""
        note(session, f"rollouts.{verb}", federation=federation, detail=f"rollout {number}")
    typer.echo(f"rollout {number}: {phase}")
