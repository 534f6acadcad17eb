"""Make `light_client.json`: what a client that cannot train, such as a phone's browser, computes for itself.

After a change of the rules: `python -m tests.vectors.light_client`, and say in CHANGELOG.md why they changed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_agent.machine.commands import Evaluate
from edge_agent.serving import acceptance
from edge_agent.serving.acceptance import ComparisonSet
from edge_agent.serving.model_runs import ExampleKind, ModelEvaluation, Windows
from edge_agent.training.comparison import PairedComparison, by_stretch
from federation import wire
from federation.protocol.messages import VersionScore
from gaitway.tasks.classification import ClassSoundness
from har_pipeline import ChannelStatistics, ClientWindows, PipelineSettings, split_client

PATH = Path(__file__).with_suffix(".json")
LABELS = ("downstairs", "upstairs", "walking", "sitting", "standing", "jogging")
HOP_S, WINDOW_S = 1.28, 2.56
EPOCH_S = 1_790_000_000.0


def class_sums(embeddings: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Add embeddings (n, D) one after the other in float64: sums (C, D), counts (C,)."""
    sums, counts = np.zeros((classes, embeddings.shape[1])), np.zeros(classes)
    for row, label in zip(embeddings.astype(np.float64), labels, strict=True):
        sums[label] += row
        counts[label] += 1
    return sums, counts


def vectors() -> dict[str, Any]:
    """Return everything that the file holds."""
    return {
        "about": "What a client computes that cannot train (docs/protocol.md). Arrays are base64 of little-endian "
        "float32 in C order. `upload`, prototypes and normalized windows are equal bit for bit; other fractions within "
        "1e-12. `round(x)` takes halves to the even number. Where a value is null it is not known.",
        "class_means": list(_class_means()),
        "temporal_split": list(_splits()),
        "normalization": list(_normalization()),
        "soundness": list(_soundness()),
        "thinned_holdout": [_thinned(*case) for case in ((10, 20), (20, 20), (41, 20), (1000, 300), (1001, 7))],
        "comparison": list(_comparisons()),
        "acceptance": list(_acceptance()),
    }


def main() -> None:
    """Write the file."""
    PATH.write_text(text(vectors()))


def text(content: dict[str, Any]) -> str:
    """Write the file with a case a line."""

    def cases(value: Any) -> str:
        if not isinstance(value, list):
            return json.dumps(value)
        return "[\n  " + ",\n  ".join(json.dumps(case, separators=(",", ":")) for case in value) + "\n ]"

    return "{\n " + ",\n ".join(f"{json.dumps(name)}: {cases(value)}" for name, value in content.items()) + "\n}\n"


def packed(values: np.ndarray) -> str:
    """Write float32 as base64."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


# ---- mean embeddings and the upload


def _class_means() -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(0)
    yield _mean_case("a few windows", random.standard_normal((7, 4)), [0, 1, 1, 2, 0, 1, 2], 3)
    yield _mean_case("a class without windows has the prototype 0", random.standard_normal((4, 3)), [3, 0, 3, 3], 5)
    small = np.tile([[0.1, 1 / 3, 1e-3]], (1500, 1))
    yield _mean_case("sums in float32 would drift", small, [0, 1, 1] * 500, 2)
    cancelling = [[1e16, 3e7], [1, 1.25], [-1e16, -3e7], [1, 2.5], [1, 1e-9], [1e16, 1e30], [3, 7], [-1e16, -1e30]]
    yield _mean_case("another order gives other bits", np.array(cancelling), [1] * 8, 2)
    half = random.standard_normal((200, 5)) * 10.0 ** random.integers(-18, 19, (200, 1))
    labels = random.integers(0, 4, 200)
    order = random.permutation(400)
    wide, labels = np.concatenate([half, -half])[order], np.concatenate([labels, labels])[order]
    yield _mean_case("wide range, where only rounding is left of the sum", wide, labels.tolist(), 4)
    tiny = np.array([[1e-45, -0.0, 3e38], [1e-45, -0.0, 3e38], [-1e-45, 0.0, 3e38]])
    yield _mean_case("subnormal, minus zero, more than float32 holds", tiny, [0, 0, 0], 1)
    yield _mean_case("as large as har_cnn's", np.maximum(random.standard_normal((40, 192)), 0), [0, 5, 2, 2] * 10, 6)


def _mean_case(name: str, embeddings: np.ndarray, labels: list[int], classes: int) -> dict[str, Any]:
    embeddings = embeddings.astype(np.float32)
    sums, counts = class_sums(embeddings, np.array(labels), classes)
    prototypes = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
    tree = {"prototypes": torch.from_numpy(prototypes), "counts": torch.from_numpy(counts.astype(np.float32))}
    return {
        "name": name,
        "dimensions": embeddings.shape[1],
        "classes": classes,
        "embeddings": packed(embeddings),
        "labels": labels,
        "prototypes": packed(prototypes),
        "upload": base64.b64encode(wire.encode(tree)).decode(),
    }


# ---- training and holdout windows


def _splits() -> Iterator[dict[str, Any]]:
    hops = EPOCH_S + HOP_S * np.arange(40)
    yield _split_case("one class, overlapping windows", hops, [0] * 40)
    yield _split_case("three activities after each other", hops, [0] * 15 + [1] * 17 + [2] * 8)
    yield _split_case("activities that alternate", hops, [0, 0, 0, 1, 1] * 8)
    apart = np.concatenate([hops[:20], hops[:20] + 3600])
    yield _split_case("two sessions an hour apart", apart, [0, 1] * 20, session=[0] * 20 + [1] * 20)
    yield _split_case("windows that only touch share no sample", EPOCH_S + WINDOW_S * np.arange(12), [0, 1] * 6)
    yield _split_case("one window of a class trains, of two one is held out", hops[:6:2], [0, 1, 1])
    yield _split_case("halves are rounded to the even number: 2.5 to 2", hops[::4], [0] * 10, share=0.25)
    yield _split_case("halves are rounded to the even number: 1.5 to 2", hops[:24:4], [1] * 6, share=0.25)
    order = np.random.default_rng(1).permutation(30)
    yield _split_case("not in the order of time, and some at one time", np.repeat(hops[:15] - EPOCH_S, 2)[order], [
        int(i) for i in np.random.default_rng(2).integers(0, 3, 30)
    ])  # fmt: skip
    yield _split_case("none", hops[:0], [])


def _split_case(
    name: str, start_s: np.ndarray, labels: list[int], *, session: list[int] | None = None, share: float = 0.2
) -> dict[str, Any]:
    # a phone keeps whole milliseconds
    start_ms = np.round(start_s * 1000).astype(np.int64)
    windows = _windows(start_ms / 1000, labels, session)
    split = split_client(windows, "temporal", test_share=share, settings=PipelineSettings())
    return {
        "name": name,
        "window_s": PipelineSettings().window_s,
        "test_share": share,
        "start_ms": start_ms.tolist(),
        "labels": labels,
        "session": windows.session.tolist(),
        "train": split.train.tolist(),
        "holdout": split.test.tolist(),
    }


def _windows(start_s: np.ndarray, labels: list[int], session: list[int] | None = None) -> ClientWindows:
    y = np.array(labels, np.int64)
    sessions = np.zeros(len(y), np.int64) if session is None else np.array(session, np.int64)
    return ClientWindows("phone", np.zeros((len(y), 0, 6), np.float32), y, np.asarray(start_s, np.float64), sessions)


# ---- normalization


def _normalization() -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(3)
    scale, offset = np.array([2, 3, 1, 0.5, 0.1, 1]), np.array([0.1, 9.81, -1, 0, 0.02, 0])
    yield _normalized("windows of a phone", random.standard_normal((5, 128, 6)) * scale + offset)
    still = np.tile([0.0, 9.80665, 0.3, 0.0, 1e-5, -2.0], (2, 16, 1))
    yield _normalized("a channel that does not move has the smallest deviation", still)
    yield _normalized("one sample", np.array([[[1, 2, 3, 4, 5, 6]]]))


def _normalized(name: str, x: np.ndarray) -> dict[str, Any]:
    x = x.astype(np.float32)
    statistics = ChannelStatistics.of(x)
    return {
        "name": name,
        "shape": list(x.shape),
        "windows": packed(x),
        **statistics.to_json(),
        "mean": statistics.mean.tolist(),
        "std": statistics.std.tolist(),
        "normalized": packed(statistics.normalize(x)),
    }


# ---- whether a model works


def _soundness() -> Iterator[dict[str, Any]]:
    yield _sound("no windows", np.zeros((6, 6)))
    yield _sound("one class", np.diag([30, 0, 0]))
    yield _sound("too few windows", np.diag([9, 10]))
    yield _sound("too few of each class", np.diag([36, 4, 4, 1]))
    yield _sound("always the same answer", np.array([[20, 0, 0], [12, 0, 0], [8, 0, 0]]))
    yield _sound("worse than the constant answer", np.array([[2, 28], [9, 1]]))
    yield _sound("hardly better than guessing", np.array([[14, 11], [11, 14]]))
    yield _sound(
        "a class with few windows does not count for the recall", np.array([[19, 2, 0], [3, 14, 1], [2, 1, 1]])
    )
    yield _sound("as good as can be", np.diag([12, 9, 31, 6, 7, 22]))
    yield _sound("skewed", np.array([[180, 6, 4], [5, 9, 1], [2, 1, 6]]))
    yield _sound("answers a class that the holdout does not have", np.array([[15, 0, 3], [1, 13, 0], [0, 0, 0]]))


def _sound(name: str, matrix: np.ndarray) -> dict[str, Any]:
    matrix = matrix.astype(np.int64)
    labels = LABELS[: len(matrix)]
    found = ClassSoundness(matrix, labels)
    return {
        "name": name,
        "labels": list(labels),
        "confusion": matrix.tolist(),
        "windows": found.examples,
        "classes": found.classes,
        "score": found.score,
        "trivial": found.trivial,
        "works": found.works,
        "obstacle": found.undecided_reason,
        "fault": found.failure_reason,
        "words": found.words,
    }


# ---- which model is used


def _thinned(windows: int, most: int) -> dict[str, Any]:
    whole = _windows(np.arange(float(windows)), [0] * windows)
    kept = acceptance.evenly(whole, most)
    return {"windows": windows, "most": most, "kept": kept.start_s.astype(int).tolist()}


def _holdout() -> tuple[ClientWindows, np.ndarray]:
    """Windows of six sessions over four activities, and random numbers from 0 to 1 for who errs where."""
    session = np.repeat(np.arange(6), 32)
    start_ms = 1000 * EPOCH_S + 1280 * np.arange(len(session)) + 600_000 * session
    labels = np.repeat(np.tile([0, 1, 2, 3], 12), 4)
    # not in the order of time: an app may keep its windows as it likes
    order = np.random.default_rng(4).permutation(len(session))
    windows = _windows(start_ms / 1000, labels.tolist(), session.tolist()).select(order)
    return windows, np.random.default_rng(5).random((2, len(order)))


def _answers(windows: ClientWindows, draws: np.ndarray, right: float) -> np.ndarray:
    return np.where(draws < right, windows.y, (windows.y + 1) % 4)


def _comparisons() -> Iterator[dict[str, Any]]:
    windows, draws = _holdout()
    for name, mine, other in (
        ("better", 0.9, 0.5),
        ("worse", 0.5, 0.9),
        ("as good", 0.7, 0.7),
        ("no chance", 0.8, 0.7),
    ):
        answers = [_answers(windows, draws[0], mine), _answers(windows, draws[1], other)]
        right = [each == windows.y for each in answers]
        paired = PairedComparison.of(by_stretch(windows), *right)
        yield {
            "name": name,
            **_holdout_json(windows),
            "candidate_right": right[0].astype(int).tolist(),
            "present_right": right[1].astype(int).tolist(),
            "stretches": paired.groups,
            "better": paired.better,
            "worse": paired.worse,
            "p_better": paired.p_better,
            "is_better": paired.is_better,
            "is_worse": paired.is_worse,
            "words": paired.words,
        }


def _holdout_json(windows: ClientWindows) -> dict[str, Any]:
    return {
        "start_ms": np.round(windows.start_s * 1000).astype(np.int64).tolist(),
        "session": windows.session.tolist(),
        "truth": windows.y.tolist(),
    }


def _score(working: int) -> VersionScore:
    return VersionScore(
        metric="macro_f1", value=812_000, trivial=111_000, devices=5, working=working, measured="version"
    )


def _acceptance() -> Iterator[dict[str, Any]]:
    few = slice(0, 12)
    yield _accepted("the first model", 0.9, None)
    yield _accepted("the first model does not work", 0.24, None)
    yield _accepted("better", 0.9, 0.5)
    yield _accepted("better, by less than the margin", 0.9, 0.5, margin=0.6)
    yield _accepted("not shown to be better", 0.75, 0.7)
    yield _accepted("worse", 0.5, 0.9)
    yield _accepted("the present model does not work", 0.8, 0.2)
    yield _accepted("released, and no worse", 0.75, 0.7, release=3)
    yield _accepted("released, and scores lower", 0.68, 0.75, release=3)
    yield _accepted("released, and worse", 0.5, 0.9, release=3)
    yield _accepted("the present model does not run any more", 0.9, None, has_model=True)
    yield _accepted("few windows, nobody knows, no model yet", 0.9, None, few=few)
    yield _accepted("few windows, nobody knows", 0.9, 0.5, few=few)
    yield _accepted("few windows, the server's score is good", 0.9, 0.5, few=few, score=_score(4))
    yield _accepted("few windows, the server's score is good, lower here", 0.3, 0.9, few=few, score=_score(4))
    yield _accepted("few windows, the server's score is bad", 0.9, 0.5, few=few, score=_score(2))
    own = "personalized"
    yield _accepted("the phone's own is not shown to be better", 0.7, 0.75, present_source=own)
    yield _accepted("the phone's own is better", 0.5, 0.9, present_source=own)
    yield _accepted("the phone's own is better, by less than the margin", 0.5, 0.9, margin=0.6, present_source=own)
    yield _accepted("few windows, nobody knows, the phone's own is used", 0.5, 0.9, few=few, present_source=own)


def _accepted(
    name: str,
    mine: float,
    present: float | None,
    *,
    margin: float = 0.0,
    release: int = 0,
    has_model: bool = False,
    few: slice | None = None,
    score: VersionScore | None = None,
    present_source: str = "global",
) -> dict[str, Any]:
    """Judge a model that the server sent (kind "adopt"), which is right on a share `mine` of the holdout."""
    windows, draws = _holdout()
    if few:
        windows, draws = windows.select(np.arange(len(windows))[few]), draws[:, few]
    labels = LABELS[:4]

    def run(number: int, right: float) -> tuple[np.ndarray, ModelEvaluation]:
        answered = _answers(windows, draws[number], right)
        model = {"source": present_source if number else "global", "round": 7 - number}
        return answered, ModelEvaluation(model, ClassSoundness.of(windows.y, answered, labels), answered == windows.y)

    answered, candidate = run(0, mine)
    before, other = run(1, present) if present is not None else (None, None)
    field = ComparisonSet(
        Windows.of(windows, None, ExampleKind()), other, other is not None or has_model, margin, release > 0
    )
    asked = Evaluate(7, "adopt", release=release, server_score=score)
    outcome, why = acceptance.decide(candidate, field, asked)
    return {
        "name": name,
        "labels": list(labels),
        **_holdout_json(windows),
        "candidate": answered.tolist(),
        "present": None if before is None else before.tolist(),
        "has_model": field.has_model,
        "present_source": present_source,
        "margin": margin,
        "release": release,
        "score": None if score is None else score.model_dump(),
        "outcome": outcome,
        "why": why,
    }


if __name__ == "__main__":
    main()
