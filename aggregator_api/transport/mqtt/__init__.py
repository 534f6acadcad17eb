"""The server's way to the devices: a broker's client, the embedded broker, and Mosquitto's configuration."""
