"""Whose address a request has, with and without proxies that may say so."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from aggregator_api.auth.callers import client_address, parse

PROXY = "127.0.0.1"
TRUSTED = [ip_network("127.0.0.1"), ip_network("10.0.0.0/8"), ip_network("2001:db8:1::/48")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        (PROXY, [], PROXY),
        (PROXY, ["198.51.100.1"], "198.51.100.1"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # whoever is no proxy may write what he likes
        (PROXY, ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),  # left of it stands what the client sent itself
        (PROXY, ["6.6.6.6", "198.51.100.1"], "198.51.100.1"),  # the same as two headers
        (PROXY, ["6.6.6.6, 198.51.100.1, 10.1.2.3"], "198.51.100.1"),  # two proxies, one behind the other
        (PROXY, ["10.1.2.3"], "10.1.2.3"),  # a proxy's own request
        (PROXY, ["6.6.6.6, unknown"], PROXY),
        (PROXY, ["6.6.6.6, "], PROXY),
        (PROXY, ["198.51.100.1:4711"], "198.51.100.1"),
        (PROXY, ["[2001:db8:2::1]:4711"], "2001:db8:2::1"),
        ("::ffff:127.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8:1::7", ["198.51.100.1"], "198.51.100.1"),
        ("testclient", ["198.51.100.1"], "testclient"),
    ],
)
def test_only_a_trusted_proxy_says_whose_a_request_is(peer: str, forwarded: list[str], found: str) -> None:
    assert client_address(peer, forwarded, TRUSTED) == found


def test_without_trusted_proxies_nobody_is_believed() -> None:
    assert client_address(PROXY, ["198.51.100.1"], []) == PROXY


@pytest.mark.parametrize("text", ["", "unknown", "_hidden", "1.2.3", "a:b:c", "[", "1.2.3.4, 5.6.7.8"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse(text) is None
