"""Teach me: lessons of 20 seconds, the resulting head, and its evaluation."""
