"""The command line of the simulation: run, sweep, arena, compare, analyse, attack, report, presets."""

from gaitway.command_line import CommandLine

COMMANDS = {
    "run": (
        "run:run",
        "Simulate a federation, and write its scores, checkpoints, plots, models and report to a folder.",
    ),
    "sweep": (
        "sweep:sweep",
        "Run every combination of some options, and compare the results; the same command resumes after a crash.",
    ),
    "presets": (
        "presets:presets",
        "List the presets, and each paper's tables and figures with the commands that make them, or explain some.",
    ),
    "pretrain": (
        "pretrain:pretrain",
        "Pretrain HART on pooled windows without labels, for `sim run --init FILE`.",
    ),
    "analyse": (
        "reports:analyse",
        "Analyse runs beyond their scores: t-SNE, prototypes, attention, margins, entropy maps, loss, gradients, MMD, "
        "FFD.",
    ),
    "attack": (
        "attack:attack",
        "Attack what a run's server sees of each device, and measure what it could learn.",
    ),
    "compare": (
        "reports:compare",
        "Compare runs in one table, test them against a baseline seed by seed, and write HTML, Markdown and JSON.",
    ),
    "report": ("reports:report", "Redraw a run's plots and rewrite its report.html."),
    "arena": ("arena:app", "Run and render the tables of results that experiments/ declares."),
}
"""Each command's location and purpose."""

app = CommandLine(rich_markup_mode="rich")
app.later("sim.cli", COMMANDS)


@app.callback()
def program() -> None:
    """Simulate federations, compare methods, and make the papers' tables."""
