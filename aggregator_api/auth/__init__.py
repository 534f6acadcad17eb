"""Authenticates callers, says what they may do, and keeps the server's own identity."""
