"""Maintenance of stored data: retention, backups, restores and checks."""
