"""The server's other way to the devices, where no broker is in reach: streams of what is said, and what they post."""
