"""What REST and pages show: rows as pydantic models, and the queries that read them."""
