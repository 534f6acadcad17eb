"""Views for REST and pages: rows as pydantic models, and the queries that read them."""
