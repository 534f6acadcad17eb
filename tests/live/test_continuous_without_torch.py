"""Two boards in a continuous federation of exact sums, one without torch, onnx, scipy, pandas and Pillow.

What the server adds for it is bit for bit the sums of ONNX Runtime's features of its windows, which are torch's up to
rounding; without it the version is bit for bit the simulation's, as before it came.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from edge_agent.storage.window_store import WindowStore
from edge_agent.training.local_data import local_data
from export.runtime import Session
from federation.aggregation.ridge_numpy import FixedSums, RidgeOptions, sums_of, travelling
from federation.records import Tree
from har_pipeline import dataset_settings
from tests.live.fleet import Fleet, embedded, fleet
from tests.live.test_continuous import COSINES, World, ask, expect, newest, serves, world_of
from tests.live.test_without_torch import torch_hidden
from tests.live.walks import assert_same, data_options, experiment_for, plan_of

WITH, WITHOUT = "s00_phone100-waist", "s00_phone200-waist"


@pytest.mark.slow
@pytest.mark.service
def test_a_device_without_torch_adds_its_sums_and_takes_them_out_again(tmp_path: Path) -> None:
    settings = experiment_for("analytic", minutes=2.0)
    settings = settings.model_copy(update={"dataset_options": data_options(2.0)})
    world = world_of((WITH, WITHOUT), settings, None, COSINES)

    def under(name: str) -> list[str]:
        return torch_hidden(tmp_path, name, {WITHOUT}) if name != "server" else []

    with fleet(tmp_path, under, broker=embedded) as here:
        here.get("/v1/federations", {"name": "live", "plan": plan_of(world.settings).model_dump(mode="json")})
        here.add_device(world.write_config(tmp_path, WITH, here, "mqtt"))
        alone = world.broadcast_of([WITH])
        expect(here, alone, "of the board with torch")
        lite = world.write_config(tmp_path, WITHOUT, here, "http")
        here.add_device(lite)
        here.wait_for(lambda: int(newest(here).get("clients", -1)) == 2, "the sums without torch do not come")
        both = here.last_broadcast()
        here.wait_for(lambda: serves(tmp_path, WITHOUT), "the device without torch serves no head")
        own = sums_without_torch(world, here, tmp_path / WITHOUT)
        for name in ("gram", "moment"):
            added = both["sums"][name] - alone["sums"][name]
            assert torch.equal(added, torch.from_numpy(getattr(own, name)).to(added.dtype)), name
        require_near(both, world.broadcast_of([WITH, WITHOUT]))

        ask(lite, "withdraw")
        expect(here, alone, "after its withdrawal")
        ask(lite, "take-part")
        here.wait_for(lambda: int(newest(here).get("clients", -1)) == 2, "the device does not come back")
        assert_same(here.last_broadcast(), both, "with it again")


def sums_without_torch(world: World, here: Fleet, folder: Path) -> FixedSums:
    """Sum up a device's training windows by the server's ONNX file and numpy."""
    plan = plan_of(world.settings)
    with closing(WindowStore(folder)) as store:
        windows = store.read(folder.name, dataset_settings("synthetic"), plan.labels)
    mine = local_data(windows, plan.data, dataset_settings("synthetic")).train
    session = Session.load(here.blob(here.get("/v1/federations/live")["feature_model"]["sha256"]))
    clip = RidgeOptions.of(plan.method).clip
    return travelling(sums_of(session.predict(mine.x).embedding, mine.y, len(plan.labels), clip))


def require_near(mine: Tree, torchs: Tree) -> None:
    """Compare with sums that torch alone has made: features differ in their last bits."""
    for name in ("gram", "moment"):
        ours, theirs = mine["sums"][name].double(), torchs["sums"][name].double()
        assert not torch.equal(ours, theirs), "the device had torch"
        assert float((ours - theirs).abs().max()) < 1e-4 * float(theirs.abs().max())
