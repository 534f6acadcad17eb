"""`python -m sim`."""

from sim.cli import app

if __name__ == "__main__":
    app(prog_name="python -m sim")
