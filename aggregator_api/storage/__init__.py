"""The server's storage: the database, blobs, epochs, the ledger and checks."""
