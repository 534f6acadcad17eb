"""What the demo offers to phones: a link as a code, HTTPS with an authority of its own, a second federation."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
import segno
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from aggregator_api.core.settings import Settings
from aggregator_api.core.settings import load as server_settings
from aggregator_api.http.app import create_app
from federation.protocol.enrolment_uri import read_enrolment_uri
from gaitway.terminal import Console
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import OperatorClient


def test_the_link_for_phones_is_a_code_on_any_terminal(phones: ModuleType) -> None:
    link = f"https://192.0.2.7:18443/phone/#gaitway-enrol:?token=gwe_{'a' * 43}_{'b' * 32}"
    output = io.StringIO()
    console = Console(file=output, width=60, force_terminal=True, color_system="truecolor")
    phones.show_link(console, link)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue()).splitlines()
    assert lines.pop() == link
    assert len({len(line) for line in lines}) == 1
    assert output.getvalue().count("\x1b[97;40m") == len(lines)  # its own colours, not the terminal's
    halves = {" ": (1, 1), "█": (0, 0), "▀": (0, 1), "▄": (1, 0)}  # a light module is drawn
    drawn = [[halves[each][half] for each in line] for line in lines for half in (0, 1)]
    expected = [list(row) for row in segno.make(link, error="l", micro=False).matrix_iter(border=2)]
    assert drawn[: len(expected)] == expected


def test_the_demos_authority_vouches_for_one_server_and_has_no_key(phones: ModuleType, tmp_path: Path) -> None:
    https = phones.write_https(tmp_path / "https", "192.0.2.7", 18443)
    settings = server_settings(https.settings)
    assert settings.https_address == ("192.0.2.7", 18443)
    authority = x509.load_pem_x509_certificate(https.authority.read_bytes())
    certificate = x509.load_pem_x509_certificate((tmp_path / "https" / "https.pem").read_bytes())
    certificate.verify_directly_issued_by(authority)
    assert https.fingerprint == certificate.fingerprint(hashes.SHA256()).hex(":").upper()
    keys = [path for path in (tmp_path / "https").iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    assert [(path.name, path.stat().st_mode & 0o777) for path in keys] == [("https.key", 0o600)]
    own = serialization.load_pem_private_key(keys[0].read_bytes(), None).public_key()
    assert own == certificate.public_key() != authority.public_key()


def test_a_fingerprint_is_printed_as_it_is(phones: ModuleType) -> None:
    output = io.StringIO()
    phones.line(Console(file=output), "76:CD:8A:AB:0F")  # Rich makes pictures of :cd: and :ab:
    assert output.getvalue() == "76:CD:8A:AB:0F\n"


@pytest.mark.ci
def test_phones_and_boards_join_one_federation(phones: ModuleType, scenario: ModuleType, tmp_path: Path) -> None:
    import federations
    import rest

    chosen = scenario.choose(None, 2)
    settings = Settings(data_dir=tmp_path / "server", aggregation_process=False)
    console = Console(file=io.StringIO(), width=100)
    https = phones.write_https(tmp_path / "https", "192.0.2.7", 18443)
    with OperatorClient(create_app(settings, Wires)) as client:
        operator = rest.Operator(client)
        operator.create(federations.SUMS, scenario.plan_of_sums(chosen))
        phones.invite(console, operator, federations.SUMS, https, tmp_path)
        found = operator.describe(federations.SUMS)
        network = client.get(found["feature_model"]["url"])
    assert found["continuous"]
    assert found["status"] == "running"
    assert (network.status_code, len(network.content)) == (200, found["feature_model"]["size"])
    said = console.file.getvalue()
    link = re.search(r"^https://192\.0\.2\.7:18443/phone/#(\S+)$", said, re.MULTILINE)
    assert link is not None, said
    uri = read_enrolment_uri(unquote(link[1]))
    assert (uri.server, uri.federation, uri.device) == (https.url, federations.SUMS, phones.DEVICE)
    assert https.fingerprint in said
