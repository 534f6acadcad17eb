"""Transport over MQTT: a broker's client, the embedded broker, and Mosquitto's configuration."""
