"""The figures of a run."""
