"""What a finished run leaves in its directory: the summary, every client's scores, the confusion matrices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from federation import wire
from federation.tasks.task import Statistics, Task
from gaitway.files import write_json
from gaitway.tasks import Metric
from gaitway.terminal import Console
from sim.experiment.settings import Experiment
from sim.results.run_directory import RunDirectory
from sim.rounds.simulation import Simulation
from sim.scores.evaluation import Chosen, plain, spread, total
from sim.scores.records import SELECTIONS, MeanStd, SelectedRound, Selection, Spread, Summary

Generalization = dict[int, dict[str, Statistics]]
"""Statistics of each client's model on the union of test sets, by the round of the models."""


def write_results(simulation: Simulation, settings: Experiment, out: Path, extra: dict[str, Any]) -> dict[str, Any]:
    """Score the chosen rounds' models on the union of test sets, write the files, and return the summary.

    The best round's scores stand by themselves, those of the last and of the one chosen by validation under their own
    names. `extra` is laid over the summary; its "seconds" are added to the simulation's.
    """
    chosen = simulation.best_round.selections(simulation.scored_clients())
    general: Generalization = {}
    for choice in filter(None, chosen.values()):
        if choice.round not in general:  # two that chose the same round have the same models
            general[choice.round] = simulation.generalization(choice)
    write_json(out / "client_scores.json", _client_scores(simulation, chosen, general))
    write_json(out / "confusion.json", _confusion(simulation.task, simulation.best_round.best, general))
    seconds = {**simulation.seconds, **extra.pop("seconds", {})}
    summary = {
        **_summary(simulation, settings),
        "best_round": simulation.best_round.best.round,
        **_by_selection({name: _selected(simulation.task, choice, general) for name, choice in chosen.items()}),
        **_bytes(out),
        "client_bytes": client_bytes(simulation),
        **extra,
        "seconds": {**{k: round(v, 3) for k, v in seconds.items()}, "total": round(sum(seconds.values()), 3)},
    }
    write_json(out / "summary.json", summary)
    return summary


def _by_selection(found: Mapping[Selection, Mapping[str, Any] | None]) -> dict[str, Any]:
    """Lay the best round's entries beside the others' under their names."""
    best = {key: value for key, value in (found["best"] or {}).items() if key != "round"}
    return {**best, "validation": found["validation"], "last": found["last"]}


def _selected(task: Task, chosen: Chosen | None, general: Generalization) -> dict[str, Any] | None:
    if chosen is None:
        return None
    return {
        "personalization": chosen.record["personalization"],
        "generalization": spread(task, general[chosen.round]),
        "global": chosen.record["global"],
        "global_per_client": chosen.record["global_per_client"],
        "round": chosen.round,
    }


def _summary(simulation: Simulation, settings: Experiment) -> dict[str, Any]:
    return {
        "schema": 1,
        "method": settings.method["name"],
        "model": "+".join(model.name for model in settings.models),
        "data": settings.dataset,
        "clients": len(simulation.data.clients),
        "rounds": settings.rounds.rounds,
        "epochs_total": settings.rounds.rounds * settings.training.epochs,
        "seed": settings.training.seed,
    }


def _bytes(out: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return {name: float(np.mean([line[name] for line in lines])) for name in ("bytes_up", "bytes_down")}


def client_bytes(simulation: Simulation) -> float:
    """Return the bytes that one client holds while it trains, the mean over its networks.

    That is its network, what the method remembers on it, and what the round's loss needs beside them, such as the
    received model as an anchor; not the examples, the optimizer's moments and the activations.
    """
    method = simulation.setup.method
    broadcast = method.broadcast(simulation.state, min(simulation.network_of))
    held = [method.receive(network.initial, broadcast) for network in simulation.networks]
    return float(np.mean([wire.tensor_bytes({**client._asdict(), "round": state}) for client, state in held]))


def _client_scores(
    simulation: Simulation, chosen: Mapping[Selection, Chosen | None], general: Generalization
) -> dict[str, Any]:
    task, last = simulation.task, simulation.best_round.last
    counts = simulation.data.per_class(task)
    return {
        name: {
            **_by_selection({which: _client(task, name, choice, general) for which, choice in chosen.items()}),
            "test": counts[name]["test"],
            "train": counts[name]["train"],
        }
        for name in sorted(last.statistics.keys() | last.served.keys())
    }


def _client(task: Task, name: str, chosen: Chosen | None, general: Generalization) -> dict[str, Any] | None:
    if chosen is None:
        return None
    return {
        "personalization": _scores(task, chosen.statistics.get(name)),
        "generalization": _scores(task, general[chosen.round].get(name)),
        "global": _scores(task, chosen.served.get(name)),
    }


def _scores(task: Task, statistics: Statistics | None) -> dict[str, float | None] | None:
    return None if statistics is None else plain(task, statistics)


def _confusion(task: Task, best: Chosen, general: Generalization) -> dict[str, Any]:
    """Confusion matrices summed over clients; none where nobody has examples, or the task no classes."""
    parts = {"personalization": best.statistics, "generalization": general[best.round], "global": best.served}
    sums = {name: total(part) if spread(task, part) else {} for name, part in parts.items()}
    return {name: counts["confusion"].tolist() if "confusion" in counts else None for name, counts in sums.items()}


DEFINITIONS = {
    "personalization": "each client's own trained model on its own test set; mean ± standard deviation over clients",
    "generalization": "the same client models on the union of all clients' test sets; mean ± standard deviation",
    "global": "the server's model on the union of all test sets; methods without a server model have none",
    "worst": "the mean personalization of the worst tenth of the clients (⌊K/10⌋, one at least), each metric's own",
}
SELECTED = {"validation": "by validation", "last": "last round", "best": "best by test"}
"""How a round is chosen, in short."""
CHOICES = {
    "validation": "the round with the best mean personalization on validation examples, which are not trained on",
    "last": "the last round, whatever it scored",
    "best": "the round with the best mean personalization on the test examples, as the papers choose it: "
    "what is chosen by the test scores is flattered by them",
}


def choice(selection: Selection) -> str:
    """Say in a sentence of which round a table's scores are."""
    return f"Personalization, generalization and global are of {CHOICES[selection]}."


def spread_text(metric: Metric, score: MeanStd) -> str:
    """Write `mean ± std`."""
    return f"{metric.text(score.mean)} ± {metric.text(score.std)}"


def byte_size(count: float) -> str:
    """Write a number of bytes with a decimal unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Write seconds as `12.3 s`, `4 min 05 s` or `2 h 07 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


# ---- one run


def print_summary(run: RunDirectory, console: Console | None = None) -> None:
    """Print the three scores of a run in every round that was chosen, or how far it is; fits 80 columns."""
    console = console or Console()
    config, summary = run.config, run.summary
    title = f"{config.dataset} · {config.model_name} · {config.method_name}"
    if summary is None:
        console.print(Text(f"{title}: {len(run.rounds)} of {config.planned_rounds} rounds done, not finished"))
        return
    if summary.is_unscored:
        loss = run.rounds[-1].train_loss
        measured = "nobody trained" if loss is None else f"training loss {loss:.3f} in the last round"
        console.print(Text(f"{title}: no test examples, so no scores; {measured}"))
        console.print(Text(cost_line(summary)))
        return
    table = Table(title=title, box=box.SIMPLE, title_style="bold", title_justify="left")
    first, *others = config.metrics.values()
    table.add_column(first.label + first.unit, no_wrap=True)
    chosen = selected_texts(run)
    for selection, (number, _) in chosen.items():
        table.add_column(f"{SELECTED[selection]}\nround {number}", justify="right", no_wrap=True)
    for score in DEFINITIONS:
        names = "\n".join([score, *(f"  {metric.label}" for metric in others)])
        table.add_row(names, *("\n".join(texts[score]) for _, texts in chosen.values()))
    console.print(table)
    for selection in chosen:
        console.print(Text(f"{SELECTED[selection]}: {CHOICES[selection]}.", style="dim"))
    console.print(Text(cost_line(summary)))


ScoreTexts = dict[str, tuple[str, ...]]
"""Each of the task's metrics as text, by score."""


def selected_texts(run: RunDirectory) -> dict[Selection, tuple[int, ScoreTexts]]:
    """List each chosen round of a finished run and its scores as text; the one to trust first."""
    found: dict[Selection, tuple[int, ScoreTexts]] = {}
    for selection in SELECTIONS:
        if run.summary is not None and (chosen := run.summary.selected(selection)) is not None:
            metrics = run.config.metrics
            worst = tuple(metric.text(run.worst_tenth(name, selection)) for name, metric in metrics.items())
            found[selection] = chosen.round, {**score_texts(chosen, metrics), "worst": worst}
    return found


def score_texts(chosen: SelectedRound, metrics: Mapping[str, Metric]) -> ScoreTexts:
    """Return each metric of each score as text."""
    server = chosen.global_ or {}
    return {
        "personalization": spread_texts(chosen.personalization, metrics),
        "generalization": spread_texts(chosen.generalization, metrics),
        "global": tuple(metric.text(server.get(name)) for name, metric in metrics.items()),
    }


def spread_texts(part: Spread | None, metrics: Mapping[str, Metric]) -> tuple[str, ...]:
    """Write each metric of a score of many clients as text."""
    return tuple(spread_text(metric, part[name]) if part else "–" for name, metric in metrics.items())


def cost_line(summary: Summary) -> str:
    """Return rounds, bytes and time in one sentence."""
    traffic = f"{byte_size(summary.bytes_up)} up, {byte_size(summary.bytes_down)} down per client and round"
    total = duration(summary.seconds["total"])
    return f"{summary.rounds} rounds of {summary.clients} clients; {traffic}; {total}."
