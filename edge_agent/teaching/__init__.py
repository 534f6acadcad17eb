"""A person teaches the device by doing: lessons of 20 seconds, the head that they give, and how well it does."""
