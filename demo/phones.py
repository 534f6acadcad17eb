"""Phones in the same network: HTTPS with a certificate that the demo makes, and the link with which a phone joins."""

from __future__ import annotations

import io
import socket
import ssl
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import segno
from rich.text import Text

from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.transport.mqtt.mosquitto.certificates import issue, make_authority
from federation.protocol.enrolment_uri import EnrolmentUri
from gaitway.files import write_file
from gaitway.plain_text import toml_tables
from gaitway.terminal import Console
from processes import DemoError
from rest import Operator
from show import line

DEVICE = "phone-1"
DAYS = 60  # of the certificate; the operator's page warns in the last 30
INVITATION = """\
There: Join; then Teach me, and tap what you do, about twenty seconds of two activities or more. It then takes part by
itself, in one federation with the devices above; Recognize shows what it makes of your motion.
The phone will warn that it doesn't know the certificate, which the demo has just made. Accept it (Chrome: Advanced,
Proceed; Safari: Show Details, visit this website) if its SHA-256 is
  {fingerprint}
or send this file to the phone and install it as an authority, so that the browser doesn't ask and can keep the page.
Nobody has the authority's key, so it vouches for this server alone.
  {authority}
If nothing answers, a firewall of this machine or of the network blocks port {port}.
The link lets one phone in, within a day. Links for more of them:
  {url}/federations/{federation}/enrolment"""


class Https(NamedTuple):
    """Where the demo's server speaks HTTPS, its settings, and how to recognize its certificate."""

    url: str
    port: int
    settings: Path
    authority: Path
    fingerprint: str


def network_address() -> str:
    """Return the address by which other machines reach this one; raise a DemoError if there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # reserved by RFC 5737: this looks up the route, and sends nothing
        found = str(probe.getsockname()[0])
        if not found.startswith("127."):
            return found
    raise DemoError("This machine isn't on a network; give --address, or leave out --phone")


def write_https(folder: Path, address: str, port: int) -> Https:
    """Make a certificate for the address, and the server's settings for it.

    The authority's key is never written: whoever installs its certificate trusts this one server and no other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = make_authority("Gaitway demo authority")
    made = issue(authority, [address], days=DAYS)
    certificate, key, ca = folder / "https.pem", folder / "https.key", folder / "ca.pem"
    write_file(key, made.key, mode=0o600)
    write_file(certificate, made.certificate)
    write_file(ca, authority.certificate)
    files = {"tls_cert_file": str(certificate), "tls_key_file": str(key)}
    path = folder / "server.toml"
    path.write_text(toml_tables({**files, "https_host": address, "https_port": port}) + "\n")
    digest = sha256(ssl.PEM_cert_to_DER_cert(made.certificate.decode())).digest()
    return Https(f"https://{address}:{port}", port, path, ca, digest.hex(":").upper())


def invite(console: Console, operator: Operator, federation: str, https: Https, server: Path) -> None:
    """Show how a phone joins the federation."""
    console.rule("A phone in the same network")
    line(console, "The operator's page from other machines, and the file with the key that it needs:")
    line(console, f"  {https.url}/\n  {server / OPERATOR_FILE}")
    line(console, f"A phone that scans this code, or opens the link below it, joins {federation} in its browser.")
    token = operator.enrolment_token(federation, DEVICE)
    show_link(console, EnrolmentUri(https.url, federation, DEVICE, token).phone_link)
    line(console, INVITATION.format(**https._asdict(), federation=federation))


def show_link(console: Console, link: str) -> None:
    """Print a link as a QR code, light on dark whatever the terminal's colours are, and in letters."""
    drawn = io.StringIO()
    segno.make(link, error="l", micro=False).terminal(drawn, border=2, compact=True)
    for row in drawn.getvalue().splitlines():
        console.print(Text(row, "bright_white on black", no_wrap=True, overflow="crop"), soft_wrap=True)
    line(console, link)
