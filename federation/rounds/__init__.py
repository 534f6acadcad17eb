"""The state machines of the server's rounds and of released models, without I/O."""
