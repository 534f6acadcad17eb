"""Released models: waves, what devices make of them, and what an operator decides."""
