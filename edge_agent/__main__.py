"""`python -m edge_agent`: run a device, look at one, or write a config file for one."""

from __future__ import annotations

from gaitway.interrupts import begin_loading, run_program
from gaitway.own_packages import exit_if_hidden

if __name__ == "__main__":
    begin_loading()
    exit_if_hidden("har_pipeline", "models", "federation", "export")

import typer

from edge_agent.cli.home_assistant import app as home_assistant_app
from edge_agent.cli.privacy import privacy, take_part_again, withdraw_device
from edge_agent.cli.run import run
from edge_agent.cli.setup import enrol, page_password
from edge_agent.cli.status import doctor, models, status
from edge_agent.cli.windows import label, windows
from edge_agent.config.settings import example
from gaitway.command_line import CommandLine
from gaitway.files import keep_private

app = CommandLine(rich_markup_mode="markdown")


@app.callback()
def program() -> None:
    """Run a device of a federation: collect windows, train when a round invites it, keep the best model.

    Any setting can come from the environment instead, as GAITWAY_EDGE_<SECTION>_<FIELD>.
    """
    keep_private()


app.command(can_be_quiet=False)(run)
for command in (enrol, status, label, windows, models, privacy, doctor):
    app.command()(command)


app.command("withdraw")(withdraw_device)
app.command("take-part")(take_part_again)
app.command("page-password")(page_password)
app.add_typer(home_assistant_app, name="home-assistant")


@app.command("example-config")
def example_config() -> None:
    """Print a commented config file with every setting and its default."""
    typer.echo(example())


if __name__ == "__main__":
    run_program(app, prog_name="python -m edge_agent")
