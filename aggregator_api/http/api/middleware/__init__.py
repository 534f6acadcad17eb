"""Middleware before every route: authentication, rate limits and size limits."""
