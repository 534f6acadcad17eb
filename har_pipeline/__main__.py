"""Entry point of `python -m har_pipeline`."""

from har_pipeline.cli import app

app(prog_name="python -m har_pipeline")
