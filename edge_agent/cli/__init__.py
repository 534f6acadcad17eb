"""Commands of `python -m edge_agent` that look after windows, labels, models and the device's health."""
