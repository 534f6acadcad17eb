"""The report is one page without network or script that says the run's numbers, and the reader of run directories."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gaitway.terminal import Console
from sim.cli import app
from sim.cli import run as run_command
from sim.errors import RunDirectoryError
from sim.experiment.settings import Experiment
from sim.reports.comparison.compare import compare
from sim.reports.figures.run_figures import FIGURES
from sim.reports.report import repeat_command, write_report
from sim.results.run_directory import RunDirectory
from sim.results.summary import byte_size, duration, print_summary
from tests.browser import needs_browser
from tests.sim.example_run import plain, spread, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Page(HTMLParser):
    """Collects tags, addresses and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.text += " ".join(data.split()) + " "


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def page_of(path: Path, *, drawn: bool = False) -> Page:
    """The report of a run; unless `drawn`, with one pixel for a plot, because drawing takes seconds."""
    if not drawn:
        (path / "plots").mkdir()
        (path / "plots" / "cost.png").write_bytes(PIXEL)
    return Page(write_report(RunDirectory(path)).read_text("utf-8"))


def test_the_report_needs_nothing_from_outside(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", clients=4, rounds=3)
    page = page_of(path, drawn=True)
    assert len(page.addresses) == len(FIGURES) - 1, "all but the images, which only segmentation has"
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not {"script", "link", "iframe"} & set(page.tags)
    html = (path / "report.html").read_text("utf-8")
    assert not re.search(r"https?://|url\(|@import", html)
    assert html.lstrip().startswith("<!doctype html>")


def test_the_report_says_scores_clients_and_settings(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", personalization=0.8765, generalization=0.4321, global_score=0.5432)
    text = page_of(path).text
    for expected in ("87.65 ± 5.00", "43.21 ± 5.00", "54.32", "88.65 ± 5.00", "1.78 MB", "All 24 clients", "2.13.0"):
        assert expected in text
    lowest = min(s.personalization["macro_f1"] for s in RunDirectory(path).client_scores.values())
    assert f"{100 * lowest:.2f}" in text


def test_the_report_leads_with_what_was_not_chosen_by_test(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", config={"validation_share": 0.1})
    chosen = {"validation": (4, 0.8111), "last": (12, 0.7222), "best": (9, 0.9333)}
    for name, (number, score) in chosen.items():
        scores = {"personalization": spread(score), "generalization": None, "global": None}
        if name == "best":
            _update(path / "summary.json", {"best_round": number, **scores})
        else:
            _update(path / "summary.json", {name: {"round": number, **scores}})
    text = " ".join(page_of(path).text.split())
    assert text.index("81.11 ± 5.00") < text.index("72.22 ± 5.00") < text.index("93.33 ± 5.00")
    assert "personalization, macro-F1 (%) 81.11 ± 5.00" in text
    assert "by validation 4 81.11 ± 5.00" in text
    assert "last round 12 72.22 ± 5.00" in text
    assert "best by test 9 93.33 ± 5.00" in text
    assert "not how sure the mean is" in text
    _update(path / "summary.json", {"validation": None})
    assert "personalization, macro-F1 (%) 72.22 ± 5.00" in Page(write_report(RunDirectory(path)).read_text()).text
    console = Console(width=80, record=True, file=io.StringIO())
    print_summary(RunDirectory(path), console)
    printed = console.export_text()
    assert "last round   best by test" in printed
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_a_run_of_an_earlier_version_is_refused_in_words(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    summary = json.loads((path / "summary.json").read_text())
    del summary["last"]
    (path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunDirectoryError, match=r"summary\.json: last: Field required; .* or another version's"):
        write_report(RunDirectory(path))


def test_the_report_says_how_the_classes_and_the_worst_clients_fare(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", clients=20)
    run = RunDirectory(path)
    matrix = np.array(run.confusions.personalization)
    text = page_of(path).text
    for index, label in enumerate(run.config.labels):
        f1 = 2 * matrix[index, index] / (matrix[index].sum() + matrix[:, index].sum())
        tested = sum(client.test_per_class[index] for client in run.clients.values())
        assert f"{label} {tested} {100 * f1:.2f}" in text
    scores = sorted(score.personalization["macro_f1"] for score in run.client_scores.values())
    assert run.worst_tenth("macro_f1") == pytest.approx((scores[0] + scores[1]) / 2)
    assert f"macro-F1 {100 * (run.worst_tenth('macro_f1') or 0):.2f}" in text


def test_the_report_shows_new_clients(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", clients=3)
    shots = {"0": spread(0.512), "5": spread(0.613), "10": None}
    new_clients = {"clients": ["x7", "x9"], "epochs": 20, "shots": shots, "client_models": spread(0.414)}
    _update(path / "summary.json", {"new_clients": new_clients})
    text = page_of(path).text
    assert "2 clients took no part in the federation: x7, x9" in text
    assert "as they join 51.20 ± 5.00" in text
    assert "after the first 5 examples of each class, 20 epochs 61.30 ± 5.00" in text
    assert "after the first 10 examples of each class, 20 epochs –" in text
    assert "each new client's mean over them 41.40 ± 5.00" in text


def test_a_method_without_client_models(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", clients=3, method="centralized")
    nobody = {"personalization": None, "generalization": None}
    _update(path / "summary.json", {**nobody, "last": {**nobody, "round": 12, "global": plain(0.7)}})
    (path / "client_scores.json").write_text("{}")
    _update(path / "confusion.json", {"personalization": None, "generalization": None})
    page = page_of(path, drawn=True)
    assert "personalization, macro-F1 (%) – " in page.text
    assert "The worst 10 %" not in page.text


def _update(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_141_clients_are_all_in_the_table(tmp_path: Path) -> None:
    names = tuple(f"client-{k:03d}" for k in range(141))
    text = page_of(write_run(tmp_path / "run", clients=141, names=names)).text
    assert all(name in text for name in names)


@pytest.mark.parametrize(("split", "leaks"), [("temporal", False), ("random80", True), ("kfold7_3", True)])
def test_the_report_says_whether_the_split_leaks(split: str, leaks: bool, tmp_path: Path) -> None:
    text = page_of(write_run(tmp_path / "run", clients=2, config={"data": {"split": split}, "split_leaks": leaks})).text
    assert ("This split leaks" in text) == leaks
    assert ("no test window overlaps" in text) == (not leaks)


def test_a_method_without_a_server_model(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", clients=3, method="local", global_score=None))
    assert "global, macro-F1 (%) – " in page.text


def test_names_from_outside_cannot_become_markup(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    page = page_of(write_run(tmp_path / "run", clients=3, names=(hostile,), config={"hardware": hostile}))
    assert "script" not in page.tags
    assert hostile in page.text


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "run", finished=False))
    assert "This run is not finished: 6 of 12 rounds are done" in page.text


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", finished=False)
    (path / "rounds.jsonl").unlink()
    (path / "clients.json").unlink()
    page = page_of(path, drawn=True)
    assert "0 of 12 rounds are done" in page.text
    assert page.addresses == []


def test_the_command_repeats_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Experiment] = []
    monkeypatch.setattr(run_command, "simulate", lambda experiment, *_rest, **_more: seen.append(experiment))
    first = "run --data synthetic --model har_cnn_alp --method fedprox --rounds 7 --epochs 2 --batch 16 --lr 0.0003"
    first += " --seed 5 --set mu=0.25 --set model.dropout=0.3 --set data.subjects=2 --set rounds.over_selection=1.5"
    first += (
        " --eval-every 2 --clients-per-round 3 --split random80 --momentum 0.5 --optimizer sgd --engine stacked --out x"
    )
    first += " --stragglers 0.5 --sampling examples --partition dirichlet --set partition.alpha=0.3 --scale 0.5"
    first += " --holdout leave-clients-out:c1,c2 --set holdout.epochs=3 --clients-by user --generalization-examples 100"
    assert CliRunner().invoke(app.app, shlex.split(first)).exit_code == 0
    dumped = json.loads(seen[0].model_dump_json(by_alias=True))
    run = RunDirectory(write_run(tmp_path / "run", config=dumped))
    again = shlex.split(repeat_command(run.config))
    assert again[:3] == ["python", "-m", "sim"]
    result = CliRunner().invoke(app.app, again[3:])
    assert result.exit_code == 0, result.output
    assert seen[1] == seen[0]


# ---- the reader


def test_a_path_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"has no config\.json; expected the --out"):
        RunDirectory(tmp_path)
    with pytest.raises(RunDirectoryError, match="is not a directory"):
        RunDirectory(tmp_path / "nowhere")


def test_a_damaged_file_names_file_and_key(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / "summary.json").write_text(json.dumps({"clients": 3}))
    with pytest.raises(RunDirectoryError, match=r"summary\.json: rounds: Field required"):
        _ = RunDirectory(path).summary
    lines = (path / "rounds.jsonl").read_text().splitlines()
    (path / "rounds.jsonl").write_text("\n".join([lines[0], "{}", lines[2], ""]))
    with pytest.raises(RunDirectoryError, match=r"rounds\.jsonl, line 2"):
        _ = RunDirectory(path).rounds


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", config={"schema": 1})
    with pytest.raises(RunDirectoryError, match=r"config\.json: schema: Input should be 2"):
        RunDirectory(path)


def test_a_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    text = (path / "rounds.jsonl").read_text()
    (path / "rounds.jsonl").write_text(text[:-40])
    assert [record.round for record in RunDirectory(path).rounds] == list(range(1, 12))


def test_a_client_without_test_examples_has_no_score(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", clients=3)
    scores = json.loads((path / "client_scores.json").read_text())
    scores["2"]["personalization"] = {"macro_f1": float("nan"), "accuracy": None}
    (path / "client_scores.json").write_text(json.dumps(scores))
    run = RunDirectory(path)
    own = run.client_scores["2"].personalization
    assert own is not None
    assert own["macro_f1"] is None
    assert own["accuracy"] is None
    assert "–" in page_of(path).text
    assert FIGURES["client_scores"](run) is not None


# ---- numbers as text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (245, "4 min 05 s"), (3599.7, "1 h 00 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (4608, "4.61 kB"), (1_780_232, "1.78 MB"), (2.5e9, "2.50 GB")]
)
def test_byte_sizes(count: float, text: str) -> None:
    assert byte_size(count) == text


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_summary_shows_whole_numbers(width: int, tmp_path: Path) -> None:
    console = Console(width=width, record=True, quiet=False, file=(tmp_path / "out").open("w"))
    print_summary(RunDirectory(write_run(tmp_path / "run")), console)
    print_summary(RunDirectory(write_run(tmp_path / "half", finished=False)), console)
    text = console.export_text()
    console.file.close()
    assert "90.00 ± 5.00" in text
    assert "91.00 ± 5.00" in text
    assert "6 of 12 rounds done, not finished" in text


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run's report and a comparison of two, with their long names."""
    folder = tmp_path_factory.mktemp("pages")
    runs = [write_run(folder / name, model="har_cnn", method=name) for name in ("fedavg", "fedprox")]
    compare(runs, folder / "compared")
    return [write_report(RunDirectory(runs[0])), folder / "compared" / "comparison.html"]


@needs_browser
def test_pages_fit_a_phone_and_follow_a_dark_screen(pages: list[Path], browser: Browser) -> None:
    for path in pages:
        for scheme, is_dark in (("light", False), ("dark", True)):
            page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path.name
            paper, ink = (page.evaluate(f"getComputedStyle(document.body)['{part}']") for part in PARTS)
            assert (brightness(paper) < brightness(ink)) == is_dark
            page.close()


PARTS = ("background-color", "color")


def brightness(color: str) -> int:
    return sum(map(int, re.findall(r"\d+", color)[:3]))
