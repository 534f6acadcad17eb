"""Where the clients' models lie between rounds: in memory, in a file that the kernel may page out, or nowhere."""

from sim.client_store.choice import Choice, Federation, choose, client_bytes
from sim.client_store.disk import OnDisk
from sim.client_store.memory import Clients, InMemory, Keeper, Kept, Result, shared
from sim.client_store.null import Nothing, remembered

__all__ = [
    "Choice",
    "Clients",
    "Federation",
    "InMemory",
    "Keeper",
    "Kept",
    "Nothing",
    "OnDisk",
    "Result",
    "choose",
    "client_bytes",
    "remembered",
    "shared",
]
