"""The Sensor Logger app: its messages over HTTP and MQTT, and its exports, as one stream of samples."""
