"""Authentication and authorization of callers, and the server's own identity."""
