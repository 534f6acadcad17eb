"""The command line of the simulation: run, sweep, arena, compare, analyse, attack, report, presets."""

from gaitway.command_line import CommandLine

COMMANDS = {
    "run": (
        "run:run",
        "Simulate a federation, and leave its scores, checkpoints, plots, models and report in a directory.",
    ),
    "sweep": (
        "sweep:sweep",
        "Run every combination of some options, and compare what came out; the same command resumes after a crash.",
    ),
    "presets": (
        "presets:presets",
        "List the presets and each paper's tables and figures with the commands that make them; or explain some.",
    ),
    "pretrain": (
        "pretrain:pretrain",
        "Pretrain HART on windows without their labels in one place, for `sim run --init FILE`.",
    ),
    "analyse": (
        "reports:analyse",
        "Look behind the scores: t-SNE, prototypes, attention, margins, entropy maps, loss, gradients, MMD and FFD.",
    ),
    "attack": (
        "attack:attack",
        "Attack what the server of a run sees of each device, and say in numbers what it could learn.",
    ),
    "compare": (
        "reports:compare",
        "Put runs into one table, test them against a baseline seed by seed, and write HTML, Markdown and JSON.",
    ),
    "report": ("reports:report", "Draw a run's plots and write its report.html again."),
    "arena": ("arena:app", "Tables of results: declared in experiments/, run, and rendered."),
}
"""Where each command is, and what it is for."""

app = CommandLine(rich_markup_mode="rich")
for _name, (_place, _purpose) in COMMANDS.items():
    app.later(_name, f"sim.cli.{_place}", _purpose)


@app.callback()
def program() -> None:
    """Simulate federations, compare methods, and make the papers' tables."""
