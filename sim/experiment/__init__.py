"""A run's experiment: its options, settings, networks and checks."""
