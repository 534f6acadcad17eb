"""When a device trains: what is read of it, and what that means."""
