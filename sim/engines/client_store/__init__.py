"""Stores client models between rounds: in memory, in a file that the kernel may page out, or nowhere."""

from sim.engines.client_store.choice import StoreChoice, StoreDemand, choose, client_bytes
from sim.engines.client_store.disk import DiskStore
from sim.engines.client_store.memory import Clients, ClientStore, MemoryStore, Result, StoredClient, shared
from sim.engines.client_store.null import NullStore, check_forgetting, remembered

__all__ = [
    "ClientStore",
    "Clients",
    "DiskStore",
    "MemoryStore",
    "NullStore",
    "Result",
    "StoreChoice",
    "StoreDemand",
    "StoredClient",
    "check_forgetting",
    "choose",
    "client_bytes",
    "remembered",
    "shared",
]
