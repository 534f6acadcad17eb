"""The device's model: accepted by its own windows, rolled back, and used on the live stream."""
