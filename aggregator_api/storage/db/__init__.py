"""What concerns the database alone."""
