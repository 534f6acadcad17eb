"""A federation's life: created from a plan, changed, paused and ended by its operator."""
