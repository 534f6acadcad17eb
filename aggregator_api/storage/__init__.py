"""What the server keeps on its disk, and how it comes back: epochs, backups, restores, checks."""
