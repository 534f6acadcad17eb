"""Where the clients' models lie between rounds: in memory, or in a file on the disk that the kernel may page out."""

from sim.keeping.choice import Choice, Federation, choose, client_bytes
from sim.keeping.clients import Clients, InMemory, Keeper, Kept, Result
from sim.keeping.disk import OnDisk

__all__ = [
    "Choice",
    "Clients",
    "Federation",
    "InMemory",
    "Keeper",
    "Kept",
    "OnDisk",
    "Result",
    "choose",
    "client_bytes",
]
