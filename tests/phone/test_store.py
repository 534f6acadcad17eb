"""What the phone keeps, in a real IndexedDB: all or nothing, by stretches of time, within its room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.http.web import phone
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.sockets import served
from tests.browser import NEEDS_BROWSER

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = NEEDS_BROWSER
BEGIN = """
  const { Store } = await import(`/phone/${version}/collection/store.js`);
  const window = (startMs, label = null) => ({ startMs, label, session: "s", x: new Float32Array(768).fill(startMs) });
  const short = (each) => [each.startMs, each.label, each.x?.[767]];
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("store"), aggregation_process=False), Wires)
    with served(app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def kept(page: Page, address: str) -> Page:
    page.goto(f"{address}/phone/")
    page.get_by_role("heading", level=1).wait_for()
    return page


def run(page: Page, script: str) -> Any:
    return page.evaluate(f"async (version) => {{ {BEGIN} {script} }}", phone.version())


def test_stretches_are_labelled_by_a_windows_middle_and_deleted_by_its_reach(kept: Page) -> None:
    found = run(
        kept,
        """
        const store = await Store.open("one");
        await store.addWindows([window(12800), window(0), window(1280), window(5120, "sitting")]);
        const counts = [await store.label(2560, 6400, "walking"), await store.deleteWindows(6000, 6001)];
        return { counts, windows: (await store.windows()).map(short), marks: (await store.marks()).map(short) };
        """,
    )
    assert found["counts"] == [1, 1]  # the middle of the window at 5120 is 6400, which is no longer in the stretch
    expected = [[0, None, 0], [1280, "walking", 1280], [12800, None, 12800]]
    assert found["windows"] == expected
    assert found["marks"] == [[start, label, None] for start, label, _ in expected]


def test_values_are_set_together_or_not_at_all_and_outlive_the_page(kept: Page) -> None:
    words = run(
        kept,
        """
        const store = await Store.open("two");
        const key = await crypto.subtle.generateKey("Ed25519", false, ["sign"]);
        await store.setAll({ a: 1, key });
        try { await store.setAll({ a: 2, b: () => 0 }) } catch (error) { return error.message }
        """,
    )
    assert "could not be read or written" in words
    kept.reload()
    kept.get_by_role("heading", level=1).wait_for()
    found = run(
        kept,
        """
        const store = await Store.open("two");
        return [await store.get("a"), (await store.get("b")) === undefined, (await store.get("key")).privateKey.type];
        """,
    )
    assert found == [1, True, "private"]


def test_the_oldest_windows_without_a_label_make_room(kept: Page) -> None:
    found = run(
        kept,
        """
        const store = await Store.open("three", 3);
        await store.addWindows([window(1, "walking"), window(2), window(3), window(4), window(5, "walking")]);
        const first = (await store.windows()).map(short);
        await store.addWindows([window(6, "walking"), window(7, "walking")]);
        return [first, (await store.windows()).map(short)];
        """,
    )
    assert found[0] == [[1, "walking", 1], [4, None, 4], [5, "walking", 5]]
    assert found[1] == [[5, "walking", 5], [6, "walking", 6], [7, "walking", 7]]


def test_only_what_is_new_is_read_again(kept: Page) -> None:
    """While it is recorded, the windows of hours would else be read again every few seconds."""
    found = run(
        kept,
        """
        const [store, other] = [await Store.open("six"), await Store.open("six")];
        const read = { marks: 0, samples: 0 };
        for (const name of ["getAll", "openCursor"]) {
          const asked = IDBObjectStore.prototype[name];
          IDBObjectStore.prototype[name] = function (...given) {
            const request = asked.apply(this, given);
            const count = ({ target }) => (read[this.name] += target.result?.length ?? 0);
            request.addEventListener("success", count);
            return request;
          };
        }
        const told = (one) => new Promise((done) => {
          const watch = (change) => (one.watchers.delete(watch), done(change));
          one.watchers.add(watch);
        });
        const steps = [];
        const step = async (change) => {
          const [here, there] = [told(store), told(other)];
          await change;
          Object.assign(read, { marks: 0, samples: 0 });
          const kinds = [await here, await there];
          const windows = (await store.windows()).map(short);
          const steady = { ...read };
          steps.push({ windows, read: steady, kinds, equal: `${windows}` === `${(await other.windows()).map(short)}` });
        };
        await step(store.addWindows([window(9000), window(0), window(1280)]));
        await step(store.addWindows([window(5120)]));
        await step(other.addWindows([window(12800, "sitting")]));
        await step(store.label(0, 3000, "walking"));
        await step(other.deleteWindows(0, 100));
        await step(store.addWindows([window(2)]));
        await step(store.clear());
        await step(store.addWindows([window(3)]));
        return steps;
        """,
    )
    assert all(step["equal"] for step in found)
    kinds = ("added", "added", "added", "labelled", "deleted", "added", "deleted", "added")
    assert [step["kinds"] for step in found] == [[kind, kind] for kind in kinds]
    assert [[start for start, _, _ in step["windows"]] for step in found] == [
        [0, 1280, 9000],
        [0, 1280, 5120, 9000],
        [0, 1280, 5120, 9000, 12800],
        [0, 1280, 5120, 9000, 12800],
        [1280, 5120, 9000, 12800],
        [2, 1280, 5120, 9000, 12800],
        [],
        [3],
    ]
    assert all(x == start for step in found for start, _, x in step["windows"])
    assert [label for _, label, _ in found[4]["windows"]] == ["walking", None, None, "sitting"]
    # marks again where labels have changed or windows have gone, samples never
    assert [step["read"]["samples"] for step in found] == [3, 1, 1, 0, 0, 1, 0, 1]
    assert [step["read"]["marks"] for step in found] == [3, 1, 1, 5, 4, 1, 0, 1]


def test_a_full_disk_and_a_newer_version_are_said_in_words(kept: Page) -> None:
    inspector = kept.context.new_cdp_session(kept)
    inspector.send("Storage.overrideQuotaForOrigin", {"origin": kept.url.split("/phone")[0], "quotaSize": 3_000_000})
    full = run(
        kept,
        """
        const store = await Store.open("four");
        const many = (from) => Array.from({ length: 400 }, (_, i) => window(from + i));
        try {
          for (let k = 0; k < 20; k++) await store.addWindows(many(400 * k));
        } catch (error) { return error.message }
        """,
    )
    inspector.send("Storage.overrideQuotaForOrigin", {"origin": kept.url.split("/phone")[0]})
    assert "storage for this site is full" in full
    newer = run(
        kept,
        """
        await new Promise((done) => {
          const asked = indexedDB.open("five", 99);
          asked.onsuccess = () => done(asked.result.close());
        });
        try { await Store.open("five") } catch (error) { return error.message }
        """,
    )
    assert "newer version of this app" in newer
