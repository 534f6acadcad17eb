"""The long-running process, which feeds events to the state machine and carries out its commands."""
