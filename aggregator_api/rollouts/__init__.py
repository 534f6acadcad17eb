"""Released models: waves, devices' results, and the operator's decisions."""
