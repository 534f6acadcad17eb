"""What an operator does to stored data: retention, backups, restores and checks."""
