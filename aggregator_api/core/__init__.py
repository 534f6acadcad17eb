"""What every part of the server uses: settings, errors, ports and the disk."""
