"""Where the clients' models lie between rounds: in memory, in a file that the kernel may page out, or nowhere."""

from sim.keeping.choice import Choice, Federation, choose, client_bytes
from sim.keeping.clients import Clients, InMemory, Keeper, Kept, Result, shared
from sim.keeping.disk import OnDisk
from sim.keeping.nothing import Nothing, remembered

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
