"""`python -m sim sweep`: every combination of some options, one run each, that a kill at any moment cannot spoil."""
