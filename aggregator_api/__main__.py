"""`python -m aggregator_api`."""

from gaitway.interrupts import begin_loading, run_program
from gaitway.own_packages import exit_if_hidden

if __name__ == "__main__":
    begin_loading()
    exit_if_hidden("har_pipeline", "models", "federation", "export", "phone")
    from aggregator_api.cli.app import app

    run_program(app, prog_name="python -m aggregator_api")
