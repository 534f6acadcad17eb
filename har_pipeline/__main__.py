"""`python -m har_pipeline`."""

from gaitway.interrupts import begin_loading, run_program

if __name__ == "__main__":
    begin_loading()
    from har_pipeline.cli import app

    run_program(app, prog_name="python -m har_pipeline")
