"""Pages for a browser, and what it may do with any answer of this server."""
