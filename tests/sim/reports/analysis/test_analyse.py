"""The whole analysis of a run: files, page, numbers, what is missing, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from sim.cli.app import app
from sim.data.federated_data import FederatedData
from sim.errors import AnalysisError
from sim.reports.analysis.analyse import analyse, write_page
from sim.reports.analysis.attention import alp_layers, watched
from sim.reports.analysis.convergence import convergence
from sim.reports.analysis.finished import FinishedRun, open_run
from sim.results.run_directory import RunDirectory
from sim.run import build_simulation, resolve, run
from tests.sim.example_run import write_run
from tests.sim.reports.analysis.conftest import Finished
from tests.sim.small_runs import settings_for

pytestmark = pytest.mark.ci


def analysed(run: FinishedRun, **options: Any) -> dict[str, Any]:
    page = analyse(run, **options)
    found: dict[str, Any] = json.loads((page.parent / "analysis.json").read_text())
    return found


def test_fedali_has_maps_of_features_and_tokens(finished: Finished) -> None:
    run = finished("fedali", "har_cnn_alp")
    found = analysed(run)
    folder = run.directory.path / "analysis"
    assert {"features_clients.png", "features_server.png", "tokens_blocks.png"} <= {p.name for p in folder.iterdir()}
    assert found["tokens"] == {"prototypes": {"alp": [8, 16]}}
    assert set(found["attention"]["effective_clients"]) == {"mean"}
    assert found["missing"]["analyses"] == "the rounds were not analysed; run it with --analyses michieli"


def test_the_page_is_self_contained(finished: Finished) -> None:
    page = analyse(finished("fedavg")).read_text()
    assert page.count('src="data:image/png') == page.count("<img ") >= 2
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_what_a_method_lacks_is_named(finished: Finished) -> None:
    missing = analysed(finished("fedper"))["missing"]
    assert missing["tokens"].startswith("no global model in a run of fedper")
    assert missing["convergence"] == "no prototypes in a run of fedper with har_cnn"
    assert analysed(finished("local"))["missing"]["attention"] == "no client weighs more or less in a run of local"
    assert analysed(finished("fedavg"))["missing"]["tokens"].startswith("no ALP layer in har_cnn")


def test_one_round_moves_no_prototype(data: FederatedData, tmp_path: Path) -> None:
    """It did record its diagnostics: no older version is to blame."""
    settings = settings_for("fedproto", model="har_cnn", rounds=1)
    run(settings, tmp_path / "run", data=data)
    with pytest.raises(AnalysisError, match="from one round to the next, and this run has 1 round; run more"):
        convergence(FinishedRun(RunDirectory(tmp_path / "run"), settings, data))


def test_pooled_data_leave_only_the_servers_map(finished: Finished) -> None:
    run = finished("centralized")
    found = analysed(run)
    names = {path.name for path in (run.directory.path / "analysis").iterdir()}
    assert "features_server.png" in names
    assert "features_clients.png" not in names
    assert set(found["aggregate_margin"]) == {"server", "rounds"}


@pytest.mark.parametrize(
    ("method", "analyses"),
    [
        ("fedproto_margin", ("attention", "convergence", "aggregate_margin")),
        ("fedatt", ("attention",)),
        ("fedproto", ("convergence", "aggregate_margin")),
    ],
)
def test_what_the_rounds_recorded_is_drawn(finished: Finished, method: str, analyses: tuple[str, ...]) -> None:
    run = finished(method)
    found = analysed(run)
    drawn = {path.name.rpartition("_")[0] for path in (run.directory.path / "analysis").iterdir()}
    assert set(analyses) <= found.keys()
    assert set(analyses) - drawn == set()


def test_a_local_run_shows_how_its_clients_prototypes_converge(finished: Finished) -> None:
    """Figure 5 of Ek et al. 2024, by distances of each client's models before and after a round."""
    run = finished("local", "har_cnn_alp")
    found = analysed(run)["convergence"]
    assert (run.directory.path / "analysis" / "convergence_rounds.png").is_file()
    again = build_simulation(resolve(run.settings), run.data)
    before, means = {}, []
    for record in again.run_rounds():
        after = {name: again.clients[name].buffers["alp.local_prototypes"].double() for name in again.clients}
        start = again.initial.buffers["alp.local_prototypes"].double()
        moved = [(after[name] - before.get(name, start)).norm(dim=1).mean() for name in after]
        means.append([record["round"], pytest.approx(float(sum(moved)) / len(moved), rel=1e-4)])
        before = after
    assert found["mean"] == {"alp": means}
    assert len(means) == 2
    for axes in convergence(run).figures["rounds"].figure.axes:
        (line,) = axes.get_lines()
        bottom, top = axes.get_ylim()
        assert bottom == 0 < min(line.get_ydata()) <= max(line.get_ydata()) <= top, "what is drawn can be seen"


def test_reopened_models_give_the_runs_scores(reopened: FinishedRun) -> None:
    scores = json.loads((reopened.directory.path / "client_scores.json").read_text())
    for name in reopened.clients:
        test = reopened.data.clients[name].test
        with torch.no_grad():
            right = (reopened.model(name)(test.x).logits.argmax(-1) == test.y).double().mean()
        assert float(right) == pytest.approx(scores[name]["personalization"]["accuracy"])


def test_tokens_are_what_enters_the_layer(finished: Finished) -> None:
    run = finished("fedali", "har_cnn_alp")
    layers = alp_layers(run.server)
    x = run.data.union_test().x[:3]
    with torch.no_grad(), watched(layers) as seen:
        run.server(x)
        expected = run.server.convolutions(x.transpose(1, 2)).transpose(1, 2)
    assert torch.equal(seen["alp"], expected)
    assert not layers["alp"]._forward_pre_hooks


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "half", finished=False)
    with pytest.raises(AnalysisError, match=r"is not finished \(6 of 12 rounds\); repeat its command"):
        open_run(path, None, None)


# ---- the command line


def invoked(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["analyse", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_the_command_writes_a_page(finished: Finished, cache: Path) -> None:
    path = finished("fedavg").directory.path
    code, output = invoked(path, "--cache", cache)
    assert code == 0, output
    assert "analysis.html" in output


def test_the_command_explains_what_is_missing(finished: Finished, cache: Path) -> None:
    path = finished("fedper").directory.path
    centralized = finished("centralized").directory.path
    code, output = invoked(path, "--cache", cache, "--centralized", centralized)
    assert (code, "no global model in a run of fedper" in output) == (2, True)
    code, output = invoked(path, "--against", path)
    assert (code, "also give --centralized DIR" in output) == (2, True)


def test_a_run_that_gives_nothing_to_draw_has_a_page_of_reasons(tmp_path: Path) -> None:
    """Such as one of masked pretraining: no class has a feature, a mask or a prototype."""
    page = write_page(tmp_path / "run" / "analysis", "Nothing", [], {"pixels": "this run learnt something else"})
    assert "this run learnt something else" in page.read_text()


def test_the_command_draws_sensitivity(tmp_path: Path) -> None:
    methods = ({"name": "fedprox", "mu": mu} for mu in (0.01, 0.1))
    runs = [write_run(tmp_path / str(m["mu"]), method="fedprox", rounds=2, config={"method": m}) for m in methods]
    code, output = invoked(*runs, "--together", tmp_path / "out")
    assert code == 0, output
    assert (tmp_path / "out" / "method_mu_scores.png").is_file()
