"""Phones in the same network: HTTPS with a certificate of the demo's own, and the link with which one takes part."""

from __future__ import annotations

import io
import json
import socket
import ssl
from hashlib import sha256
from pathlib import Path
from socket import AF_INET
from typing import NamedTuple

import psutil
import segno
from rich.text import Text

import exchange
from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.mqtt.mosquitto.certificates import issue, make_authority
from aggregator_api.web.phone import RUNTIME, files
from federation.plan import Plan
from federation.protocol.enrolment_uri import EnrolmentUri
from gaitway.files import write_file
from gaitway.terminal import Console
from processes import DemoError
from rest import Operator

FEDERATION = "demo-phones"
DEVICE = "phone-1"
DAYS = 60
"""How long the certificate holds: more than the 30 days before whose end the operator's page warns."""
ROUNDS = 20
ROUND_S = 300.0
"""Until a round's deadline: a phone whose page was closed does not hold up the others for longer."""
JOIN_SUMS = (
    "There: Join; then Teach me, and tap what you do, some twenty seconds of two or more. It then takes part by "
    "itself, in one federation with the devices above; Recognize shows what it makes of it."
)
JOIN_ROUNDS = (
    "There: Join; then Collect, and tap what you do, half a minute of two or more. Its rounds begin then, with the "
    "devices above, and Take part shows each; keep the page open. Recognize uses the network that comes of them."
)
INTERVAL_S = 15.0
"""From one version to the next, at least: somebody looks on."""


class Https(NamedTuple):
    """Where the demo's server speaks HTTPS, by what settings, and how its certificate is recognized."""

    address: str
    port: int
    settings: Path
    authority: Path
    fingerprint: str

    @property
    def url(self) -> str:
        """The server's address for other machines."""
        return f"https://{self.address}:{self.port}"


def network_address() -> str:
    """Return the address by which other machines of the network reach this one.

    Raises:
        DemoError: if there is no network.
    """
    with socket.socket(AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of nobody (RFC 5737): only looks for the route, and sends nothing
            found = str(probe.getsockname()[0])
        except OSError as error:
            raise DemoError(
                f"This machine has no network ({error.strerror}); give --address, or leave --phone out"
            ) from error
    if found.startswith("127."):
        raise DemoError("This machine is in no network; give --address, or leave --phone out")
    return found


def require_own(address: str) -> None:
    """Check that this machine has that address.

    Raises:
        DemoError: naming those that it has.
    """
    own = sorted({one.address for every in psutil.net_if_addrs().values() for one in every if one.family == AF_INET})
    if address not in own:
        raise DemoError(
            f"--address {address}: this machine has {', '.join(own) or 'none'}; choose one that phones reach"
        )


def say_what_is_missing(console: Console) -> None:
    """Say before the federation runs, not after it, that phones could only record."""
    if RUNTIME not in files():
        console.print(
            "ONNX Runtime for phones is missing: a phone will record and label, but not take part. End this with "
            "Ctrl-C, say `make phone` (it needs npm), and begin again.",
            style="yellow",
            highlight=False,
        )


def write_https(folder: Path, address: str, port: int) -> Https:
    """Make a certificate for the address, and the server's settings for it.

    The authority's key is written nowhere: whoever installs its certificate trusts this one server and no other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = make_authority("Gaitway demo authority")
    made = issue(authority, [address], days=DAYS)
    certificate, key, ca = folder / "https.pem", folder / "https.key", folder / "ca.pem"
    write_file(key, made.key, mode=0o600)
    write_file(certificate, made.certificate)
    write_file(ca, authority.certificate)
    settings = {
        "tls_cert_file": str(certificate),
        "tls_key_file": str(key),
        "https_host": address,
        "https_port": port,
    }
    path = folder / "server.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    digest = sha256(ssl.PEM_cert_to_DER_cert(made.certificate.decode())).hexdigest().upper()
    return Https(address, port, path, ca, ":".join(digest[at : at + 2] for at in range(0, len(digest), 2)))


def plan_for(plan: Plan, in_rounds: bool) -> Plan:
    """Describe what phones and boards join, for the demo's own plan.

    It is a federation without rounds, exact sums of features; or one like the demo's, whose rounds begin when a phone
    is there beside the boards.
    """
    if not in_rounds:
        return exchange.plan_of_sums(plan.labels, INTERVAL_S)
    clients = plan.rounds.minimum_clients + 1
    changes = {"rounds": ROUNDS, "minimum_clients": clients, "deadline_s": ROUND_S, "partial_work": "use"}
    return plan.model_copy(update={"rounds": plan.rounds.model_copy(update=changes)})


def invite(console: Console, operator: Operator, plan: Plan, https: Https, server: Path) -> None:
    """Create the federation of phones and boards, and show how a phone joins it."""
    console.rule("A phone in the same network")
    console.print("The operator's page from other machines, and the file with the key that it asks for:")
    say(console, f"  {https.url}/\n  {server / OPERATOR_FILE}")
    operator.create(plan, name=FEDERATION)
    token = operator.enrolment_token(FEDERATION, DEVICE)
    console.print(
        f"A phone that scans this code, or opens the link below it, takes part in {FEDERATION} by its browser."
    )
    show_link(console, EnrolmentUri(https.url, FEDERATION, DEVICE, token).phone_link)
    console.print(JOIN_SUMS if plan.method["name"] == "analytic" else JOIN_ROUNDS)
    _about_the_certificate(console, https)
    console.print("The link lets one phone in, within a day. Links for more of them:")
    say(console, f"  {https.url}/federations/{FEDERATION}/enrolment")


def show_link(console: Console, link: str) -> None:
    """Print a link as a QR code, light on dark whatever the terminal's colours are, and in letters."""
    drawn = io.StringIO()
    segno.make(link, error="l", micro=False).terminal(drawn, border=2, compact=True)
    for line in drawn.getvalue().splitlines():
        console.print(Text(line, "bright_white on black", no_wrap=True, overflow="crop"), soft_wrap=True)
    say(console, link)


def _about_the_certificate(console: Console, https: Https) -> None:
    console.print(
        "The phone will say that it does not know the certificate: the demo has just made it. Accept it (Chrome: "
        "Advanced, Proceed; Safari: Show Details, visit this website) if its SHA-256 is"
    )
    say(console, f"  {https.fingerprint}")
    console.print(
        "or send this file to the phone and install it there as an authority, for then nothing is asked and the "
        "browser can keep the page. The authority's key was thrown away, so it vouches for this one server."
    )
    say(console, f"  {https.authority}")
    console.print(f"If nothing answers, a firewall, of this machine or of the network, bars port {https.port}.")


def say(console: Console, text: str) -> None:
    """Print a line whole, whatever the width, so that links and paths in it can be copied."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
