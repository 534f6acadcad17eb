"""`python -m aggregator_api`."""

from gaitway.interrupts import begin_loading, run_program

if __name__ == "__main__":
    begin_loading()
    from aggregator_api.cli.app import app

    run_program(app, prog_name="python -m aggregator_api")
