"""`python -m edge_agent status`, `models` and `doctor`: a device's activity, its models, and its health."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from edge_agent.cli.command import ConfigOption, cli_errors, open_state
from edge_agent.config.settings import Config
from edge_agent.doctor import Level, examine
from edge_agent.serving.model_registry import HEADS_IN_WORDS, ModelRegistry, name_of
from edge_agent.storage.data_folder import is_locked
from edge_agent.storage.state_store import StateStore
from edge_agent.supervisor.status import collected_windows, describe_device, describe_release, describe_served, summary
from federation.protocol.messages import DEFAULT_METRIC
from gaitway.errors import ExitCode
from gaitway.tasks import metric_of
from gaitway.terminal import Console


def status(config: ConfigOption) -> dict[str, Any]:
    """Show what a device is doing, its rounds and its model, from its data folder; works while it runs."""
    with cli_errors(), open_state(config) as (settings, store):
        found = _look(settings, store)
    console = Console()
    for line in found["doing"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(_table(found))
    if found["compared"]:
        console.print(_compared(found["compared"]))
        if why := found["compared"].get("why"):
            console.print(f"{why}.", markup=False, highlight=False, soft_wrap=True)
    model = found["model"]
    console.print("no model yet" if model is None else f"model: {model['path']}", soft_wrap=True, highlight=False)
    for line in found["adoption"]:
        console.print(line, markup=False, highlight=False)
    return found


def _look(config: Config, store: StateStore) -> dict[str, Any]:
    kept, device = collected_windows(config.agent.data_dir, config.windows), config.agent.device
    counts = {"windows": kept.labelled, "unlabelled": kept.unlabelled, "outbox": len(store.outbox())}
    doing = [*describe_device(store, device, running=is_locked(store)), *kept.words]
    return {"doing": doing, **summary(store, device), **counts}


def _compared(found: dict[str, Any]) -> Table:
    """Show the device's candidate models, compared on the same examples."""
    table = Table(
        title=f"models on the same {found['windows']} held-out {found.get('noun', 'examples')}", title_justify="left"
    )
    metric = metric_of(found.get("metric", DEFAULT_METRIC))
    for heading in ("in use", "model", metric.label, "expected gain"):
        table.add_column(heading, justify="left" if heading in ("in use", "model") else "right")
    for row in found["models"]:
        score = "–" if row["score"] is None else f"{row['score']:.3f}"
        gain = row.get("gain")
        table.add_row(
            "yes" if row["in_use"] else "", name_of(row), score, "–" if gain is None else metric.difference_text(gain)
        )
    return table


def _table(found: dict[str, Any]) -> Table:
    table = Table(title=f"device {found['device']}", title_justify="left")
    labels = dict.fromkeys(metric_of(row["metric"]).label for row in found["rounds"])
    for heading in ("round", "status", f"{', '.join(labels) or 'score'} before", "after", "train loss", "seconds"):
        table.add_column(heading, justify="right")
    for row in found["rounds"]:
        scores = (row[name] for name in ("score_before", "score_after", "train_loss", "seconds"))
        table.add_row(str(row["round"]), row["status"], *("–" if s is None else f"{s:.3f}" for s in scores))
    return table


def models(
    config: ConfigOption,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Go back to the previous good model; twice: undo.")
    ] = False,
) -> dict[str, Any]:
    """Show the device's good models, with their scores on its holdout windows.

    A running agent switches models within a second of --rollback. The next model that passes the gate replaces it as
    usual.

    Example: python -m edge_agent models --config agent.toml --rollback
    """
    with cli_errors(), open_state(config) as (settings, store):
        if rollback:
            model = ModelRegistry(store).rollback()
            Console(stderr=True).print(f"now in use: the {name_of(model)}")
        kept = ModelRegistry(store).good_models()
        judged = [row.reason for row in store.adoptions()]
        released, serving = describe_release(store, settings.agent.device), describe_served(store)
    console = Console()
    if kept:
        console.print(_models_table(kept))
    else:
        typer.echo("no model yet")
    for line in [serving, *judged[-5:], *released]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return {"models": kept, "serving": serving, "judged": judged, "released": released}


def _models_table(kept: list[dict[str, Any]]) -> Table:
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


STYLE = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}


def doctor(
    config: ConfigOption,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check config, clock, disk, memory, server, broker, sensors and the training process, and suggest fixes.

    Exit code 1 if anything fails, 0 if there are only warnings. A running agent isn't disturbed.

    Example: python -m edge_agent doctor --config agent.toml
    """
    console, found = Console(), []
    for finding in examine(config):
        found.append(finding)
        if not as_json:
            console.print(f"{finding.level.value:>7}", style=STYLE[finding.level], end="  ", highlight=False)
            todo = f" – {finding.advice}" if finding.advice else ""
            console.print(f"{finding.check}: {finding.message}{todo}", markup=False, highlight=False, soft_wrap=True)
    failed = any(finding.level is Level.FAILURE for finding in found)
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "findings": [finding._asdict() for finding in found]}, indent=2))
    raise typer.Exit(ExitCode.FAILED if failed else ExitCode.DONE)
