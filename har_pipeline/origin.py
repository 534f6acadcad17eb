"""Where a client's windows come from, so that clients can be grouped again by user, by device or by body place.

An id is `user` or `user_suffix`, where the suffix is what a user wore several of: a device or a place on the body. Only
the reader knows which of the two it is, and what is the same for the whole set; so each reader states it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Key = Literal["dataset", "user", "device", "place"]


class Origin(NamedTuple):
    """Data set, user, device and body place of a client; "" where unknown.

    `user` is the subject as the client's id names it, so it differs between data sets that are combined. Devices and
    places are named alike in every data set.
    """

    dataset: str
    user: str
    device: str = ""
    place: str = ""
