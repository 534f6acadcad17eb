"""`python -m sim compare`: several runs side by side, and which differences between them are more than chance."""
