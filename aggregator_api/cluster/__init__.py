"""Several server processes on one PostgreSQL: leases, and who drives which federation."""
