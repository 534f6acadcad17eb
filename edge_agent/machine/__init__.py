"""The device's state machine without I/O: events in, commands out, and the state that survives a restart."""
