"""What the device must not lose, and the windows that it has collected: SQLite, bounded and repaired."""
