"""`python -m har_pipeline`."""

from gaitway.interrupts import end_at_once, run_program

if __name__ == "__main__":
    end_at_once()
    from har_pipeline.cli import app

    run_program(app, prog_name="python -m har_pipeline")
