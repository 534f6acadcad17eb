"""`python -m sim`."""

from gaitway.interrupts import begin_loading, run_program

if __name__ == "__main__":
    begin_loading()
    from sim.cli.app import app

    run_program(app, prog_name="python -m sim")
