"""Transport over HTTP for devices that can't reach a broker: event streams, and posted messages."""
