"""`python -m edge_agent`: run a device, look at one, or write a config file for one."""

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
        "Connect and take part until told to stop (Ctrl-C or SIGTERM); a restart goes on where the last run was.",
    ),
    "enrol": (
        "setup:enrol",
        "Make this device's key, show the operator's token to the server, and keep the credentials that it gives.",
    ),
    "status": (
        "status:status",
        "Say what a device is doing, and show its rounds and model, from its data folder; also while it runs.",
    ),
    "label": (
        "windows:label",
        "Say what was done in a span of time, a recorded file or a session: its windows get that activity.",
    ),
    "windows": (
        "windows:windows",
        "Show how many windows of which activity are kept, from which days, and how much room they take.",
    ),
    "models": (
        "status:models",
        "Show the good models that the device keeps, with their scores on its own holdout windows.",
    ),
    "privacy": (
        "privacy:privacy",
        "Show what this device requires before it takes part, and accept a plan that promises less.",
    ),
    "doctor": (
        "status:doctor",
        "Check config, clock, disk, memory, server, broker, sensors and the training process; say what to do.",
    ),
    "withdraw": (
        "privacy:withdraw_device",
        "Take what this device has sent out of its federation, and send nothing until `take-part`.",
    ),
    "take-part": ("privacy:take_part_again", "Let a device that was withdrawn take part again."),
    "page-password": (
        "setup:page_password",
        "Ask for a password and print the line for [agent] that lets the device's page be opened with it.",
    ),
    "home-assistant": ("home_assistant:app", "Tell a Home Assistant in the same home, or nobody, what is recognized."),
}
"""Where each command is, and what it is for."""

app = CommandLine(rich_markup_mode="markdown")
for _name, (_place, _purpose) in COMMANDS.items():
    app.later(_name, f"edge_agent.cli.{_place}", _purpose, can_be_quiet=_name != "run")


@app.callback()
def program() -> None:
    """Run a device of a federation: collect windows, train when a round invites it, keep the best model.

    Any setting can come from the environment instead, as `GAITWAY_EDGE_SECTION_FIELD`.
    """
    keep_private()


@app.command("example-config")
def example_config() -> None:
    """Print a commented config file with every setting and its default."""
    from edge_agent.config.settings import example

    typer.echo(example())


if __name__ == "__main__":
    run_program(app, prog_name="python -m edge_agent")
