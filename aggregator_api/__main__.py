"""`python -m aggregator_api`."""

from gaitway.interrupts import end_at_once, run_program

if __name__ == "__main__":
    end_at_once()
    from aggregator_api.cli.app import app

    run_program(app, prog_name="python -m aggregator_api")
