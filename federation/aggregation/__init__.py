"""Aggregation of a round's updates on the server."""
