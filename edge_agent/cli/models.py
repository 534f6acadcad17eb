"""`python -m edge_agent models`: the last good models, which one is used, and going back to the one before."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from edge_agent.cli.command import ConfigOption, cli_errors, open_state
from edge_agent.serving.model_registry import HEADS_IN_WORDS, ModelRegistry, name_of
from edge_agent.supervisor.status import describe_release, describe_served
from federation.protocol.messages import DEFAULT_METRIC
from gaitway.tasks import metric_of
from gaitway.terminal import Console


def models(
    config: ConfigOption,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Use the good model before the present one; twice: as it was.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the good models that the device keeps, with their scores on its own holdout windows.

    A running agent uses another model within a second of --rollback. The next model that passes the gate
    replaces it as usual.

    Example: python -m edge_agent models --config agent.toml --rollback
    """
    with cli_errors(), open_state(config) as (settings, store):
        if rollback:
            model = ModelRegistry(store).rollback()
            Console(stderr=True).print(f"now in use: the {name_of(model)}")
        kept = ModelRegistry(store).good_models()
        judged = [row.reason for row in store.adoptions()]
        released, serving = describe_release(store, settings.agent.device), describe_served(store)
    if as_json:
        typer.echo(json.dumps({"models": kept, "serving": serving, "judged": judged, "released": released}, indent=2))
        return
    console = Console()
    if kept:
        console.print(_table(kept))
    else:
        typer.echo("no model yet")
    for line in [serving, *judged[-5:], *released]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(kept: list[dict[str, Any]]) -> Table:
    table = Table(title="good models", title_justify="left")
    labels = dict.fromkeys(metric_of(model.get("metric", DEFAULT_METRIC)).label for model in kept)
    for heading in ("in use", "round", "kind", "release", ", ".join(labels), "sha256", "file"):
        table.add_column(heading, overflow="fold")
    for model in kept:
        file = model["path"] if model["whole"] else f"{model['path']} (gone)"
        score = "–" if model.get("score") is None else f"{model['score']:.3f}"
        in_use = "yes" if model["adopted"] else ""
        table.add_row(
            in_use,
            str(model["round"]),
            HEADS_IN_WORDS.get(model.get("head", ""), model["source"]),
            str(model.get("rollout", "–")),
            score,
            model["sha256"][:16],
            file,
        )
    return table
