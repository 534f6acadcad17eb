"""Transports between devices and server: MQTT, and HTTP for phones."""
