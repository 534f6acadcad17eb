"""The command `gaitway`: one name for the programs of this distribution, each of which also starts with `python -m`."""
