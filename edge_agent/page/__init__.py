"""The device's own page: what it recognizes, its windows and labels, its models, and why it does not train."""
