"""`python -m edge_agent`: runs or inspects a device, or writes its config file."""

from __future__ import annotations

from gaitway.interrupts import begin_loading, run_program
from gaitway.own_packages import exit_if_hidden

if __name__ == "__main__":
    begin_loading()
    exit_if_hidden("har_pipeline", "models", "federation", "export")

import typer

from gaitway.command_line import CommandLine
from gaitway.files import keep_private

COMMANDS = {
    "run": (
        "run:run",
        "Connect and take part until stopped (Ctrl-C or SIGTERM); a restart resumes where the last run ended.",
    ),
    "enrol": (
        "setup:enrol",
        "Make this device's key, present the operator's token to the server, and store the credentials that it "
        "returns.",
    ),
    "status": (
        "status:status",
        "Show what a device is doing, its rounds and its model, from its data folder; works while it runs.",
    ),
    "label": (
        "windows:label",
        "Label the windows of a time span, a recorded file or a session with an activity.",
    ),
    "windows": (
        "windows:windows",
        "Show the stored windows by activity, with their days and size.",
    ),
    "models": (
        "status:models",
        "Show the device's good models, with their scores on its holdout windows.",
    ),
    "privacy": (
        "privacy:privacy",
        "Show the privacy that this device requires, and accept a plan that promises less.",
    ),
    "doctor": (
        "status:doctor",
        "Check config, clock, disk, memory, server, broker, sensors and the training process, and suggest fixes.",
    ),
    "withdraw": (
        "privacy:withdraw_device",
        "Remove what this device has sent from its federation, and send nothing until `take-part`.",
    ),
    "take-part": ("privacy:take_part_again", "Let a withdrawn device take part again."),
    "page-password": (
        "setup:page_password",
        "Ask for a password for the device's page, and print the line for [agent] that sets it.",
    ),
    "home-assistant": ("home_assistant:app", "Turn reports of recognized activities to Home Assistant on or off."),
}
"""Each command's location and purpose."""

app = CommandLine(rich_markup_mode="markdown")
app.later("edge_agent.cli", COMMANDS, endless=("run",))


@app.callback()
def program() -> None:
    """Run a device of a federation: collect windows, train when a round invites it, keep the best model.

    The environment overrides any setting, as `GAITWAY_EDGE_SECTION_FIELD`.
    """
    keep_private()


@app.command("example-config")
def example_config() -> None:
    """Print a commented config file with every setting and its default."""
    from edge_agent.config.settings import example

    typer.echo(example())


if __name__ == "__main__":
    run_program(app, prog_name="python -m edge_agent")
