"""Middleware, queries and dependencies of the routes."""
