"""The device's durable state and its collected windows: SQLite, bounded and repaired."""
