"""The server's commands."""
