"""What REST takes and answers: pydantic models, and how they are read off the rows."""
