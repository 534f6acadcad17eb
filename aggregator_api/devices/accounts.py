"""Devices' accounts at the broker, as enrolment needs them."""

from __future__ import annotations

from typing import Protocol

SEPARATOR = "~"
"""Between federation and device in a broker account's name: neither can hold it, while '.' may be in both."""


class BrokerAccounts(Protocol):
    """Gives and takes accounts that may use one device's topics and nothing else."""

    def grant(self, federation: str, device: str, username: str, password: str) -> None:
        """Let the device in with this password from now on; an earlier one is void.

        Raises:
            BrokerError: if the broker does not answer or refuses.
        """

    def revoke(self, username: str) -> None:
        """Delete the account and end its connections; one that does not exist is no error.

        Raises:
            BrokerError: if the broker does not answer or refuses.
        """


class NoAccounts:
    """For a broker that lets everybody in, such as the embedded one."""

    def grant(self, federation: str, device: str, username: str, password: str) -> None:
        """Do nothing: the broker asks for no password."""

    def revoke(self, username: str) -> None:
        """Do nothing: nobody is kept out."""


def username(federation: str, device: str) -> str:
    """Return the name of a device's account at the broker."""
    return f"{federation}{SEPARATOR}{device}"
