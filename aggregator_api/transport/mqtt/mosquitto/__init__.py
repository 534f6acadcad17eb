"""A Mosquitto broker for production: its certificate and configuration, and the management of its accounts."""
