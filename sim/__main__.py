"""`python -m sim`."""

from sim.cli.app import app

if __name__ == "__main__":
    app(prog_name="python -m sim")
