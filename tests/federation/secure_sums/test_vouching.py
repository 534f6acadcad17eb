"""Members that nobody vouches for: a device gives up before it deals shares, whatever the server says of them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from federation.errors import WireError
from federation.plan import SecureSettings, live_incompatibility
from federation.secure_sums import server
from federation.secure_sums.client import ClientStage
from federation.secure_sums.messages import MAX_SIGNED_BYTES, SumDevice
from federation.secure_sums.server import ServerStage
from federation.secure_sums.vouching import VoucherCheck, read_revoked, read_voucher, revoke, vouch
from tests.aggregator_api.generated_devices import tiny_plan
from tests.federation.secure_sums.small_sums import NAMES, Network, device, identity

VOUCHER, NOW, YEAR_S = identity("the key that vouches"), 1_800_000_000.0, 365 * 86_400
KEY = VOUCHER.public_key().public_bytes_raw()
HONEST, INVENTED = NAMES[:4], NAMES[4]


def raw(name: str) -> bytes:
    return identity(name).public_key().public_bytes_raw()


def voucher_of(name: str, **changes: Any) -> bytes:
    given = {"sign": VOUCHER.sign, "federation": "walk", "device": name, "identity": raw(name)}
    return vouch(**{**given, "expires": int(NOW) + YEAR_S, **changes})


def member(name: str, voucher: bytes | None = None, revoked: frozenset[bytes] = frozenset()) -> SumDevice:
    shown = voucher_of(name) if voucher is None else voucher
    return device(name, voucher=shown, vouchers=VoucherCheck(KEY, revoked, NOW))


def sum_with(invented: bytes, revoked: frozenset[bytes] = frozenset()) -> tuple[Network, server.ServerState]:
    """Run a sum in which the last member is one that the server controls: it insists on nothing."""
    members = {name: member(name, revoked=revoked) for name in HONEST}
    network = Network((*HONEST, INVENTED), devices={**members, INVENTED: device(INVENTED, voucher=invented)})
    return network, network.run()


def test_a_sum_of_members_that_are_all_vouched_for_is_as_without() -> None:
    network, state = sum_with(voucher_of(INVENTED))
    assert state.stage is ServerStage.DONE
    np.testing.assert_array_equal(server.result(state), network.sum_of(state))


@pytest.mark.parametrize(
    ("invented", "reason"),
    [
        (b"", "nobody vouches for device4"),
        (voucher_of(INVENTED, sign=identity("the server").sign), "not signed by the key that vouches"),
        (voucher_of(INVENTED, federation="run"), "not signed by the key that vouches"),
        (voucher_of(NAMES[0]), "not signed by the key that vouches"),
        (voucher_of(INVENTED, identity=raw(NAMES[0])), "its voucher is for another key"),
        (voucher_of(INVENTED, expires=int(NOW)), "its voucher has expired"),
        (b"gaitway-signed/1 x", "a signed message begins with"),
    ],
)
def test_one_invented_member_ends_it_for_every_honest_device(invented: bytes, reason: str) -> None:
    network, state = sum_with(invented)
    assert state.stage is ServerStage.FAILED
    for name in HONEST:
        assert network.states[name].stage is ClientStage.ABORTED
        assert reason in network.states[name].reason
    assert not any(name in HONEST and message.kind == "sum-shares" for name, message in network.history)


def test_a_revoked_member_ends_it() -> None:
    network, state = sum_with(voucher_of(INVENTED), revoked=frozenset({raw(INVENTED)}))
    assert state.stage is ServerStage.FAILED
    assert "its key is revoked" in network.states[HONEST[0]].reason


def test_a_device_that_nobody_vouches_for_does_not_begin() -> None:
    with pytest.raises(WireError, match="nobody vouches for device0"):
        Network(NAMES[:3], devices={NAMES[0]: member(NAMES[0], voucher=b"")}).run()


def test_signed_keys_with_a_voucher_fit_their_bound() -> None:
    name = "n" * 64
    network = Network((name, *HONEST), devices={name: member(name)})
    network.run()
    sizes = [len(message.payload) for who, message in network.history if (who, message.kind) == (name, "sum-keys")]
    assert max(sizes) < MAX_SIGNED_BYTES


def test_a_plan_in_clear_names_no_key_that_vouches() -> None:
    plan = tiny_plan()
    settings = SecureSettings(voucher=base64.b64encode(KEY).decode())
    assert "secure.voucher" in str(live_incompatibility(plan.model_copy(update={"secure": settings})))
    masked = settings.model_copy(update={"mode": "masked"})
    assert live_incompatibility(plan.model_copy(update={"secure": masked})) is None


def test_lists_of_revoked_identities_are_the_keys_own() -> None:
    listed = revoke(VOUCHER.sign, "walk", [raw("b"), raw("a")], serial=7)
    assert read_revoked(KEY, "walk", listed).serial == 7
    for key, federation in ((KEY, "run"), (raw("the server"), "walk")):
        with pytest.raises(WireError, match="not signed by the key"):
            read_revoked(key, federation, listed)
    with pytest.raises(WireError, match="not signed by the key"):
        read_voucher(KEY, "walk", "", listed)
