"""How devices reach the server: MQTT, and HTTP for phones."""
