"""A server that invents members of a secure sum: devices give up that require vouchers, and go on without it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from sqlalchemy import select
from typer.testing import CliRunner

from aggregator_api.cli.keys import vouch_app
from aggregator_api.core.errors import UnprocessableError
from aggregator_api.devices import vouching
from aggregator_api.devices.vouching import VoucherFile, import_vouchers
from aggregator_api.storage.db.models import DeviceRow, FederationRow, RoundRow
from edge_agent.storage.credentials import REVOKED, keep_revoked, keep_voucher, voucher_check
from edge_agent.supervisor import secure_sum
from federation.plan import Plan
from federation.secure_sums.vouching import revoke, vouch
from tests.aggregator_api.bench import Bench, wait_for
from tests.aggregator_api.generated_devices import FEDERATION
from tests.live.summing_devices import SummingDevice, invited_to, pass_stage
from tests.live.test_secure_sums import NAMES, numbers_for, secure_plan

INVENTED = "mallory"


def offline(*words: str) -> str:
    """Run a command of `vouch`; those that are run here have neither the server's folder nor its key."""
    found = CliRunner().invoke(vouch_app, list(words))
    assert found.exit_code == 0, found.output
    return found.output.strip()


def vouched_plan(key: str) -> Plan:
    plan = secure_plan(voucher=key)
    return plan.model_copy(update={"rounds": plan.rounds.model_copy(update={"minimum_clients": 3, "rounds": 2})})


def lines_of(devices: list[SummingDevice], server: Bench) -> str:
    with server.runtime.database.read() as session:
        rows = {row.name: row.public_key for row in session.scalars(select(DeviceRow))}
    return "".join(f"{device.name} {rows[device.name]}\n" for device in devices)


def imported(server: Bench, path: Path) -> dict[str, str]:
    with server.runtime.database.write() as session:
        row = session.scalars(select(FederationRow)).one()
        return import_vouchers(session, row, VoucherFile.parsed(path.read_text())).ignored


@pytest.fixture
def world(tmp_path: Path) -> tuple[Bench, list[SummingDevice], SummingDevice]:
    """A federation whose plan names a key that vouches, five devices that it has vouched for, and one of the server."""
    key = offline("key", "--out", str(tmp_path / "vouch.key"))
    server = Bench(tmp_path / "server", vouched_plan(key))
    server.runtime.federations.pause(FEDERATION)
    devices, invented = [SummingDevice(tmp_path, name) for name in NAMES], SummingDevice(tmp_path, INVENTED)
    for device in (*devices, invented):
        device.enrol(server)
        server.say(device.name, "ready")
    (tmp_path / "devices.txt").write_text(lines_of(devices, server))
    sign(tmp_path)
    assert imported(server, tmp_path / "vouched.json") == {}
    return server, devices, invented


def sign(folder: Path, *more: str) -> None:
    words = (str(folder / "devices.txt"), "--federation", FEDERATION, "--key", str(folder / "vouch.key"))
    offline("sign", *words, "--out", str(folder / "vouched.json"), *more)


def begin(server: Bench, devices: list[SummingDevice], number: int) -> None:
    invited_to(server, devices, number)
    for device in devices:
        with device.store() as store:
            keep_voucher(store, device.invitation(server).voucher)
            keep_revoked(store, server.now().plan.secure, server.now().revoked)
        device.begin(server, numbers_for(server, device.name))
    for device in devices:
        device.send(server)


def phase(server: Bench, number: int) -> str:
    with server.runtime.database.read() as session:
        return session.scalars(select(RoundRow.phase).where(RoundRow.number == number)).one()


def test_an_invented_member_isolates_nobody_and_the_others_go_on(
    world: tuple[Bench, list[SummingDevice], SummingDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, devices, invented = world
    with monkeypatch.context() as hostile:  # the server's own checks are what a hostile one leaves out
        hostile.setattr(vouching, "require_voucher", lambda *_: None)
        row_of_the_invention(server, Ed25519PrivateKey.generate())
        server.runtime.federations.resume(FEDERATION)
        begin(server, devices, 1)
        hostile.setattr(secure_sum, "voucher_check", lambda *_: None)  # what the server controls insists on nothing
        begin(server, [invented], 1)
    reasons = [device.hear(server).reason for device in devices]
    assert all(f"nobody vouches for {INVENTED}" in reason for reason in reasons), reasons
    assert not any(device.outbox() for device in devices)
    row_of_the_invention(server, None)
    pass_stage(server)
    wait_for(lambda: phase(server, 1) == "failed")
    server.as_inbox(server.runtime.coordinator.tick)
    begin(server, devices, 2)
    assert INVENTED not in server.invited()
    for _ in range(4):
        for device in devices:
            device.take_part(server)
    wait_for(lambda: phase(server, 2) == "published")
    server.stop()


def row_of_the_invention(server: Bench, key: Ed25519PrivateKey | None) -> None:
    """Have the server vouch for its invention, with a key of its own, or have it leave the invention out."""
    with server.runtime.database.write() as session:
        row = session.scalars(select(DeviceRow).where(DeviceRow.name == INVENTED)).one()
        vouching.forget_voucher(row)
        if key is not None:
            identity = base64.b64decode(row.public_key or "")
            row.voucher = vouch(key.sign, FEDERATION, INVENTED, identity, 1 << 40).decode()
            row.voucher_expires_at = 1 << 40


def test_only_devices_that_are_vouched_for_are_invited_and_a_revoked_one_no_more(
    world: tuple[Bench, list[SummingDevice], SummingDevice], tmp_path: Path
) -> None:
    server, devices, _ = world
    (tmp_path / "revoked.txt").write_text(lines_of(devices[:1], server).split()[1] + "\n")
    sign(tmp_path, "--revoked", str(tmp_path / "revoked.txt"))
    assert imported(server, tmp_path / "vouched.json") == {NAMES[0]: "its key is revoked"}
    server.runtime.federations.resume(FEDERATION)
    wait_for(lambda: server.collects(1))
    assert set(server.invited()) == set(NAMES[1:])
    with devices[1].store() as store:
        keep_revoked(store, server.now().plan.secure, server.now().revoked)
        check = voucher_check(store, server.now().plan.secure)
    assert check is not None
    assert [base64.b64encode(key).decode() for key in check.revoked] == lines_of(devices[:1], server).split()[1:]
    server.stop()


def test_a_server_can_neither_vouch_nor_go_back_to_an_older_list(
    world: tuple[Bench, list[SummingDevice], SummingDevice], tmp_path: Path
) -> None:
    server, devices, _ = world
    offline("key", "--out", str(tmp_path / "other.key"))
    older = (tmp_path / "vouched.json").read_text()
    words = (str(tmp_path / "devices.txt"), "--federation", FEDERATION, "--key", str(tmp_path / "other.key"))
    offline("sign", *words, "--out", str(tmp_path / "forged.json"))
    with pytest.raises(UnprocessableError, match="not signed by the key that vouches"):
        imported(server, tmp_path / "forged.json")
    with devices[0].store() as store:
        settings, listed = server.now().plan.secure, VoucherFile.parsed(older).revoked
        newer = _revoked_list(tmp_path, serial=1 << 40)
        keep_revoked(store, settings, newer)
        keep_revoked(store, settings, listed)
        assert store.get(REVOKED) == newer
    server.stop()


def _revoked_list(folder: Path, serial: int) -> str:
    key = load_pem_private_key((folder / "vouch.key").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    return revoke(key.sign, FEDERATION, [], serial).decode()


def test_the_commands_list_devices_and_import_what_was_signed_elsewhere(
    world: tuple[Bench, list[SummingDevice], SummingDevice], tmp_path: Path
) -> None:
    server, devices, invented = world
    server.stop()
    where = ("--federation", FEDERATION, "--data-dir", str(tmp_path / "server"))
    listed = offline("list", *where)
    assert {line.split()[0] for line in listed.splitlines()} == {*NAMES, invented.name}
    (tmp_path / "devices.txt").write_text("\n".join(line for line in listed.splitlines() if INVENTED not in line))
    sign(tmp_path, "--days", "30")
    assert f"{len(devices)} devices of {FEDERATION} are vouched for" in offline(
        "import", str(tmp_path / "vouched.json"), *where
    )
    refused = CliRunner().invoke(vouch_app, ["import", str(tmp_path / "devices.txt"), *where])
    assert refused.exit_code != 0
    assert "isn't a file from `vouch sign`" in refused.output
