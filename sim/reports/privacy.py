"""The page of attacks on what a federation's server sees: attack.html and attack.json in a folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from gaitway.files import write_file, write_json
from sim.privacy_attacks import AttackResults
from sim.privacy_attacks.inversion import Example
from sim.privacy_attacks.observation import AttackOutcome, AttackResult, Estimate
from sim.reports.figures.style import BLUE, VERMILLION, clean, new_figure, new_panels
from sim.reports.page import CaptionedFigure, ReportPage, ReportSection, html
from sim.reports.table import Cell, ReportTable, table_of

NOTE = (
    "Bold: the attacker is better than by guessing, that is, the interval of the advantage lies above 0. In small: "
    "what guessing gets, and the advantage with its 95 % interval over the devices."
)
TERMS = {
    "clear": "the server has each device's numbers, as in a federation without secure sums.",
    "noise": "each device adds its share of a discrete Gaussian before it sends; the server has each device's numbers.",
    "secure sum": "the server has nothing but the sum of so many devices, and guesses their mean of each of them.",
    "advantage": "the score less that of an attacker who has seen nothing of the device and guesses.",
    "guessing": "what is as good as guessing is no proof: a better attack may exist. Of twenty intervals one lies "
    "above 0 by accident.",
}


def write_attack_page(results: AttackResults, folder: Path) -> Path:
    """Write attack.json, attack.html and its figures into a folder, and return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    text = html(page_of(results), folder)
    write_json(folder / "attack.json", results.to_json())
    write_file(folder / "attack.html", text.encode())
    return folder / "attack.html"


def page_of(results: AttackResults) -> ReportPage:
    """Lay out what the attacks found: a summary, then a section for each."""
    facts = results.facts
    title = f"What the server could learn: {facts['method']} with {facts['model']} on {facts['data']}"
    sections = [_summary(results), *(_section(results, attack) for attack in results.attacks.values())]
    warnings = [] if results.refusal is None else [f"No secure sums: {results.refusal}."]
    missing = [f"Not tried, {name}: {reason}." for name, reason in results.missing.items()]
    return ReportPage(title, sections, "Words", TERMS, warnings, missing)


def summary_table(results: AttackResults) -> ReportTable:
    """Return a table with an attack in each row and a setting in each column."""
    rows = [
        [attack.title, *(_cell(attack.outcomes.get(setting.key)) for setting in results.settings)]
        for attack in results.attacks.values()
    ]
    return table_of(["attack", *(setting.label for setting in results.settings)], rows, note=NOTE)


def brief_table(results: AttackResults) -> ReportTable:
    """Return a narrow table with a setting in each row and an attack in each column."""
    rows = [
        [setting.label, *(_brief(attack.outcomes.get(setting.key)) for attack in results.attacks.values())]
        for setting in results.settings
    ]
    return table_of(["score / by guessing, %", *results.attacks], rows)


def _brief(outcome: AttackOutcome | None) -> Cell:
    if outcome is None:
        return Cell("–")
    return Cell(f"{_percent(outcome.score.mean)} / {_percent(outcome.guessed.mean)}", 0 if outcome.is_chance else 1)


def _summary(results: AttackResults) -> ReportSection:
    facts = results.facts
    text = (
        f"{facts['devices']} devices train round {facts['round']} of the run with their own windows, and the attacker "
        "has what the server has: the model that it sent, and what comes back. Half of the devices lend the attacker "
        f"their windows. Noise has a deviation of {facts['noise_multiplier']:g} times the median norm of what a device "
        f"sends, in the sum: ε = {facts['epsilon_of_sum']:g} at δ = {facts['delta']:g} for one release of the sum. A "
        "single device's numbers have only its share of it."
    )
    figure = CaptionedFigure(_advantages(results), "Advantage of the attacker over guessing, with 95 % intervals.")
    return ReportSection("summary", "In short", text, {}, {"advantages": figure}, [summary_table(results)])


def _section(results: AttackResults, result: AttackResult) -> ReportSection:
    head = ["what the server sees", "score", "by guessing", "advantage", "95 % interval", "verdict"]
    rows = []
    for setting in results.settings:
        outcome = result.outcomes.get(setting.key)
        if outcome is None:
            continue
        gain = outcome.advantage
        verdict = "as good as guessing" if outcome.is_chance else "learns something"
        values = (outcome.score.mean, outcome.guessed.mean, gain.mean)
        rows.append([setting.label, *map(_percent, values), _interval(gain), verdict])
    note = f"Score, in %: {result.score}. Guessing: {result.chance}."
    figures = {}
    if examples := result.figures.get("examples"):
        caption = "The windows of two devices, black, and the nearest that was made of what the server sees."
        figures["windows"] = CaptionedFigure(_windows(examples), caption)
    return ReportSection(result.key, result.title, result.text, {}, figures, [table_of(head, rows, note=note)])


def _cell(outcome: AttackOutcome | None) -> Cell:
    if outcome is None or math.isnan(outcome.score.mean):
        return Cell("–")
    gain = outcome.advantage
    note = f"guessing {_percent(outcome.guessed.mean)}; {_signed(gain.mean)} [{_interval(gain)}]"
    return Cell(_percent(outcome.score.mean), 0 if outcome.is_chance else 1, note)


def _percent(share: float) -> str:
    return f"{100 * share + 0.0:.1f}".replace("-0.0", "0.0")


def _signed(share: float) -> str:
    text = _percent(share)
    return text if text.startswith("-") or text == "0.0" else f"+{text}"


def _interval(estimate: Estimate) -> str:
    return f"{_percent(estimate.low)} to {_percent(estimate.high)}"


def _advantages(results: AttackResults) -> Figure:
    """Draw each attack's advantage by setting, those that are more than chance in red."""
    figure, panels = new_panels(3.0, max(1, len(results.attacks)), sharey=True)
    labels = [setting.label for setting in results.settings]
    for axes, result in zip(panels, results.attacks.values(), strict=False):
        for place, setting in enumerate(results.settings):
            outcome = result.outcomes.get(setting.key)
            if outcome is None:
                continue
            gain = outcome.advantage
            colour = BLUE if outcome.is_chance else VERMILLION
            axes.plot([100 * gain.low, 100 * gain.high], [place, place], color=colour, linewidth=2)
            axes.plot(100 * gain.mean, place, "o" if outcome.is_chance else "s", color=colour)
        axes.axvline(0, color="#888888", linewidth=1)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        clean(axes, "", "points")
        axes.grid(axis="x", color="#dddddd", linewidth=0.8)
        axes.set_title(result.title.partition(",")[0].partition(":")[0], fontsize=9)
    return figure


def _windows(examples: Sequence[Example]) -> Figure:
    settings = list(examples[0].made)
    figure = new_figure(1.7 * len(examples))
    grid = figure.subplots(len(examples), len(settings), sharex=True, sharey="row", squeeze=False)
    for row, (line, example) in enumerate(zip(grid, examples, strict=True)):
        for axes, setting in zip(line, settings, strict=True):
            true, made = (_first_channel(window) for window in (example.true, example.made[setting]))
            axes.plot(true, color="#000000", linewidth=1)
            axes.plot(made, color=VERMILLION, linewidth=1)
            clean(axes, "")
            if row == 0:
                axes.set_title(setting, fontsize=9)
        line[0].set_ylabel(f"device {example.device}", fontsize=8)
    return figure


def _first_channel(window: Tensor) -> list[float]:
    """Return the first channel of a window (T, channels), or all numbers of another example."""
    values = window.flatten(1)[:, 0] if window.dim() > 1 else window
    return [float(value) for value in values]
