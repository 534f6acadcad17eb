"""A private federation of two boards and a phone in Chromium: its model is that of these devices in clear, bit for bit.

The server learns the sum of a batch alone; the phone's page is closed in the middle of a batch, and goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from federation.plan import Plan, SecureSettings
from federation.records import Tree
from tests.live.fleet import Fleet, embedded, fleet
from tests.live.test_continuous import ask, rows
from tests.live.test_phones import MINUTES, USED, a_plan, bring_windows, clients, create, join, sums
from tests.live.test_phones import phones as phones
from tests.live.test_phones import pytestmark as needs
from tests.live.walks import DEVICES, agent_toml, assert_same

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [*needs, pytest.mark.slow, pytest.mark.timeout(1800)]
NAME = "phone-1"
HASTE = "[training]\nnice = 0\n"
"""A busy machine leaves nothing to the nicest, and here there is nobody to make room for."""
SHOWS_NO_DEVICE = (
    "SELECT count(*) FROM updates WHERE json_extract(manifest, '$.sum') IS NULL",
    "SELECT count(*) FROM contributions",
    "SELECT count(*) FROM devices WHERE examples > 1",
)


def an_open_plan() -> Plan:
    """Boards and phones that send whatever has changed, and a server that caps nobody, as it cannot in private."""
    plan = a_plan()
    unjudged = plan.rounds.model_copy(update={"norm_factor": None, "max_weight_ratio": None})
    eager = plan.publication.model_copy(update={"send_after_windows": 1})
    return plan.model_copy(update={"publication": eager, "rounds": unjudged})


def a_private_plan() -> Plan:
    return an_open_plan().model_copy(update={"secure": SecureSettings(mode="masked")})


def test_a_phones_batch_gives_the_model_in_clear_bit_for_bit(
    tmp_path: Path, phones: dict[str, Page], faults: list[str]
) -> None:
    in_clear, private = phones["phone-2"], phones["phone-1"]
    for name in ("clear", "private"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "private"
    with fleet(folder, broker=embedded) as here:
        found = everybody(here, folder, a_private_plan(), private)
        database = here.folder / "data" / "gaitway.sqlite3"
        assert [rows(database, query) for query in SHOWS_NO_DEVICE] == [[0], [0], [0]]
        private.get_by_text("The server learns only the sum of all devices in a round").wait_for()
        private.screenshot(path=tmp_path / "private.png", full_page=True)
        for config in (folder / f"{device}.toml" for device in DEVICES):
            ask(config, "withdraw")
        private.get_by_text("Withdraw …").click()
        private.get_by_role("button", name="Withdraw", exact=True).click()
        closed_within_a_batch(here, private, database)
        here.wait_for(lambda: clients(here) == 0, "the sums of three that withdraw are not taken out")
        private.get_by_role("row", name="withdrawal accepted").wait_for()
        assert not any(value.any() for value in here.last_broadcast()["sums"].values())
    assert faults == []
    with fleet(tmp_path / "clear", broker=embedded) as here:
        everybody(here, tmp_path / "clear", an_open_plan(), in_clear)
        # boards begin to send before they have read all of their recordings
        here.wait_for(lambda: torch.equal(sums(here)["gram"], found["sums"]["gram"]), "the sums in clear are others")
        assert_same(here.last_broadcast(), found, "the model of the same devices in clear")


def everybody(here: Fleet, folder: Path, plan: Plan, page: Page) -> Tree:
    """Let two boards and the phone take part; return the model that all of them are in."""
    create(here, plan)
    for device, transport in zip(DEVICES, ("mqtt", "http"), strict=True):
        config = agent_toml(folder, device, here.url, here.mqtt, MINUTES, "", transport)
        config.write_text(HASTE + config.read_text())
        here.add_device(config, enrols=True)
    bring_windows(here, page, NAME)  # before it joins: it sends the sums of all of them at once
    join(here, page, NAME)
    page.goto(f"{here.url}/phone/#take-part")
    here.wait_for(lambda: clients(here) == 3, "the sums of two boards and a phone do not come together")
    page.get_by_text(USED).first.wait_for()
    return here.last_broadcast()


def closed_within_a_batch(here: Fleet, page: Page, database: Path) -> None:
    """Close the page once the batch has the phone's keys, and open it again."""
    has_keys = (
        "SELECT count(*) FROM secure_sum_devices s JOIN devices d ON d.id = s.device_id "
        "JOIN rounds r ON r.id = s.round_id "
        f"WHERE d.name = '{NAME}' AND r.number > 1 AND s.keys != x''"
    )
    here.wait_for(lambda: rows(database, has_keys) != [0], "the phone does not join the batch")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
