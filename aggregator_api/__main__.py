"""`python -m aggregator_api`."""

from aggregator_api.cli.app import app

app(prog_name="python -m aggregator_api")
