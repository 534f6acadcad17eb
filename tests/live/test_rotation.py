"""Passwords, keys and certificates that are changed while devices run: they go on without a restart."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggregator_api.auth import api_keys
from aggregator_api.cli.app import app as cli
from aggregator_api.devices.service import username
from aggregator_api.federations import service
from aggregator_api.storage.db import repositories
from aggregator_api.transport.mqtt.mosquitto import certificates
from edge_agent.errors import DownloadError
from edge_agent.storage.credentials import Credentials, read_credentials, write_credentials
from edge_agent.transport import renewal
from edge_agent.transport.downloads import BlobDownloader
from edge_agent.transport.enrolment import Applicant, EnrolmentAnswer, claim
from edge_agent.transport.renewal import CredentialRenewal
from federation.protocol.messages import BlobPointer
from tests.edge_agent.factories import make_config
from tests.live.enrolled_world import FEDERATION, World, agent, until

pytestmark = [
    pytest.mark.ci,
    pytest.mark.service,
    # paho lets go of a socket whose handshake failed without closing it; it is closed as garbage, in any later test
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask at once."""
    monkeypatch.setattr(renewal, "FIRST_S", 0.2)


def test_a_device_whose_password_was_changed_claims_another_and_goes_on(world: World, tmp_path: Path) -> None:
    config = world.enrolled(tmp_path, "a")
    with agent(config) as device:
        until(lambda: device.connected)
        before = read_credentials(tmp_path)
        # as a broker that was set up anew, or an operator who gave the account another password
        world.runtime.accounts.grant(FEDERATION, "a", username(FEDERATION, "a"), "changed")
        until(lambda: read_credentials(tmp_path) != before and device.connected)
        until(lambda: not device.says("without a connection"))


def test_a_device_reads_credentials_that_another_program_has_claimed(world: World, tmp_path: Path) -> None:
    config = world.enrolled(tmp_path, "b")
    with agent(config) as device:
        until(lambda: device.connected)
        claim(Applicant.of(config))  # as `edge_agent enrol` does
        given = read_credentials(tmp_path)
        until(lambda: not device.connected)
        until(lambda: device.connected)
        assert read_credentials(tmp_path) == given


def revoke_by_rest(world: World, device: str) -> None:
    world.runtime.devices.revoke(FEDERATION, device)


def revoke_by_command(world: World, device: str) -> None:
    """Revoke a device beside the running server, as an operator on its machine does."""
    data = str(world.runtime.settings.data_dir)
    given = ["--federation", FEDERATION, "--config", str(world.broker.server_toml), "--data-dir", data]
    done = CliRunner().invoke(cli, ["devices", "revoke", device, *given])
    assert (done.exit_code, done.stdout) == (0, f"{device}: revoked\n"), done.output


@pytest.mark.parametrize(("name", "revoke"), [("c", revoke_by_rest), ("g", revoke_by_command)])
def test_a_revoked_device_is_cut_off_says_so_and_stops_asking(
    name: str, revoke: Callable[[World, str], None], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.enrolled(tmp_path, name)
    asked = list[Applicant]()

    def counted(who: Applicant) -> Any:
        asked.append(who)
        return claim(who)

    monkeypatch.setattr(
        CredentialRenewal.__init__, "__defaults__", (counted, *CredentialRenewal.__init__.__defaults__[1:])
    )
    with agent(config) as device:
        until(lambda: device.connected)
        revoke(world, name)
        until(lambda: not device.connected)
        until(lambda: device.says("was revoked; it needs a token made for it to return"))
        until(lambda: len(asked) == 1)
        assert device.supervisor.agent.connection_error.startswith("the broker refuses this device: Not authorized")


def test_a_key_that_is_void_is_claimed_anew_for_a_download(world: World, tmp_path: Path) -> None:
    config = world.enrolled(tmp_path, "d")
    with world.runtime.database.write() as session:
        federation = service.get_federation(session, FEDERATION)
        version = repositories.current_version(session, federation)
        pointer = BlobPointer(
            sha256=version.broadcast_sha256,
            size=version.broadcast_size,
            url=f"/v1/blobs/{version.broadcast_sha256}",
        )
        row = repositories.find_device(session, federation, "d")
        assert row is not None
        api_keys.revoke_of_device(session, row)
    before = read_credentials(tmp_path)
    blobs = BlobDownloader(tmp_path / "blobs", world.url, 5.0, CredentialRenewal(config))

    def fetched() -> bool:
        try:
            return blobs.fetch(pointer).is_file()
        except DownloadError:  # 401 until it is time to claim
            return False

    until(fetched)
    assert read_credentials(tmp_path) != before
    shutil.rmtree(tmp_path / "blobs")
    assert fetched()


def test_a_new_authority_and_a_new_password_file_are_read_at_the_next_connection(world: World, tmp_path: Path) -> None:
    broker, secret, ca = world.broker, tmp_path / "password", tmp_path / "ca.pem"
    name = username(FEDERATION, "e")
    world.runtime.accounts.grant(FEDERATION, "e", name, "first")
    secret.write_text("first\n")
    shutil.copy(broker.ca, ca)
    config = world.config(tmp_path / "e", "e", ca_file=ca, username=name, password_file=secret)
    with agent(config) as device:
        until(lambda: device.connected)
        secret.write_text("second\n")
        world.runtime.accounts.grant(FEDERATION, "e", name, "second")
        until(lambda: not device.connected)
        until(lambda: device.connected)
        broker.stop()
        authority = certificates.make_authority("another authority")
        issued = certificates.issue(authority, ("127.0.0.1",), days=2)
        place = broker.folder / "broker" / "broker"
        for path, data in (
            (place / "server.pem", issued.certificate),
            (place / "server.key", issued.key),
            (place / "ca.pem", authority.certificate),
            (broker.folder / "broker" / "server" / "ca.pem", authority.certificate),
            (broker.ca, authority.certificate),
        ):
            path.write_bytes(data)
        broker.start()
        until(lambda: "can't be verified" in device.supervisor.agent.connection_error)
        ca.write_bytes(authority.certificate)
        until(lambda: device.connected)


def test_claims_of_two_that_void_each_other_become_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As two machines with one device's key would go on doing for ever."""
    now, claims = [0.0], list[float]()
    monkeypatch.setattr(renewal, "has_key", lambda _: True)
    given = {"broker": {"username": "u", "password": "p"}, "api_key": "k", "server_key": "A" * 43 + "="}

    def ask(_: Applicant) -> Any:
        claims.append(now[0])
        return EnrolmentAnswer.model_validate(
            {"state": "approved", "device": "d", "promises": {}, "credentials": given}
        )

    write_credentials(tmp_path, Credentials.model_validate(given))
    mine = CredentialRenewal(make_config(tmp_path), ask, lambda: now[0])
    while now[0] < 24 * 3600:
        now[0] += 60
        if mine.login_refused(mine.login()):
            mine.taken()  # until the other claims, which is at once
    assert len(claims) < 60
    assert min(later - earlier for earlier, later in zip(claims[-5:], claims[-4:], strict=False)) > 1800
