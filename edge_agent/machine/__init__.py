"""The device as a state machine without I/O: events in, commands out, and what survives a restart."""
