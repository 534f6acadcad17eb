"""The long-running process: it feeds events to the state machine and carries its commands out."""
