"""A Home Assistant in the same home: what the device recognizes, as entities of its MQTT integration."""
