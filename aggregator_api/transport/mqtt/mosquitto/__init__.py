"""A Mosquitto broker for production: its certificate, configuration and accounts, and the accounts' life after that."""
