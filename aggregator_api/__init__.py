"""The server's program: REST to the operator, MQTT to the devices, rounds in SQL, models in blobs.

Nothing is imported here, so that `import aggregator_api` stays light.
"""
