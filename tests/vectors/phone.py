"""Make `phone.json`: what a client without torch, such as a phone's browser, computes for itself.

After a change of the rules: `python -m tests.vectors.phone`, and say in CHANGELOG.md why they changed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_agent.training.comparison import PairedComparison, by_stretch
from edge_agent.training.local_data import evenly
from federation import wire
from federation.aggregation.ridge_numpy import sums_of, travelling
from federation.seeds import noise_seed
from federation.training.schedule import RoundStream, WindowCopies, schedule
from federation.training.window_changes import window_copies
from gaitway.tasks.classification import ClassSoundness
from har_pipeline import ChannelStatistics, ClientWindows, PipelineSettings, split_client
from tests.vectors.preferences import preferences

PATH = Path(__file__).with_suffix(".json")
LABELS = ("downstairs", "upstairs", "walking", "sitting", "standing", "jogging")
HOP_S, WINDOW_S = 1.28, 2.56
EPOCH_S = 1_790_000_000.0
CLIP = 4.0


def vectors() -> dict[str, Any]:
    """Return everything that the file holds."""
    return {
        "about": "What a client without torch computes (docs/protocol.md). Arrays are base64 of little-endian "
        "float32 in C order. `upload` and normalized windows are equal bit for bit, turned windows within 1e-6; other "
        "fractions within 1e-12. `round(x)` takes halves to the even number. Where a value is null it is not known.",
        "sums": list(_sums()),
        "temporal_split": list(_splits()),
        "normalization": list(_normalization()),
        "soundness": list(_soundness()),
        "thinned_holdout": [_thinned(*case) for case in ((10, 20), (20, 20), (41, 20), (1000, 300), (1001, 7))],
        "comparison": list(_comparisons()),
        "preference": list(preferences()),
        "orders": list(_orders()),
        "noise_seeds": list(_noise_seeds()),
        "window_copies": list(_window_copies()),
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


# ---- the draws of a round


def _orders() -> Iterator[dict[str, Any]]:
    for examples, seed, client, number, epoch in (
        (1, 0, "ada", 1, 0), (2, 0, "ada", 1, 0), (443, 7, "phone-1", 3, 2), (64, 2**53 - 1, "Zoë", 12, 0)
    ):  # fmt: skip
        drawn = schedule(examples, examples, epoch + 1, RoundStream(seed, client, number))
        yield {
            "name": f"{examples} windows of {client}",
            "seed": seed,
            "client": client,
            "round": number,
            "epoch": epoch,
            "order": drawn.rows[epoch, 0].tolist(),
        }


def _noise_seeds() -> Iterator[dict[str, Any]]:
    for bits in (31, 62):
        name = "head.2.noise"
        found = noise_seed(5, "phone-1", 3, name, bits)
        yield {"name": name, "seed": 5, "client": "phone-1", "round": 3, "bits": bits, "value": str(found)}


def _window_copies() -> Iterator[dict[str, Any]]:
    x = np.random.default_rng(3).normal(0, 9, (2, 128, 6)).astype(np.float32)
    for rotations, degrees, sensor_loss in ((2, 180.0, False), (1, 30.0, True), (0, 180.0, True), (0, 180.0, False)):
        changes: dict[str, Any] = {"rotations": rotations, "degrees": degrees, "sensor_loss": sensor_loss}
        copies = window_copies(x, 2**53 - 1, "phone-1", WindowCopies(**changes))
        shown = [packed(copy[:, :2]) for copy in copies]  # the first samples: one rotation turns a whole window
        name = f"{rotations} turned by at most {degrees:g}°" + (", one without the gyroscope" if sensor_loss else "")
        first = packed(x[:, :2])
        yield {"name": name, "seed": 2**53 - 1, "client": "phone-1", **changes, "windows": first, "copies": shown}


# ---- sums of features, and the upload


def _sums() -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(0)
    yield _sums_case("a few windows", random.standard_normal((7, 4)), [0, 1, 1, 2, 0, 1, 2], 3)
    yield _sums_case("a class without windows", random.standard_normal((4, 3)), [3, 0, 3, 3], 5)
    yield _sums_case("numbers beyond the clip", 9 * random.standard_normal((9, 3)), [0, 1, 1] * 3, 2)
    half = (np.arange(12).reshape(4, 3) + 0.5) / 4096
    yield _sums_case("halves of a step are rounded to the even number", half, [0, 1, 0, 1], 2)
    # the sum over classes of 8² √260 2¹⁵ is above 2³¹ − 1
    largest = np.full((64, 2), 8.0)
    yield _sums_case("sums that 32 bits do not hold are cut off there", largest, list(range(64)), 64, 8.0, repeats=260)
    yield _sums_case("as large as har_cnn's", np.maximum(random.standard_normal((40, 192)), 0), [0, 5, 2, 2] * 10, 6)


def _sums_case(
    name: str, embeddings: np.ndarray, labels: list[int], classes: int, clip: float = CLIP, repeats: int = 1
) -> dict[str, Any]:
    """Describe the sums of `repeats` copies of the same windows."""
    embeddings = embeddings.astype(np.float32)
    copies = np.tile(embeddings, (repeats, 1)), np.tile(labels, repeats)
    sums = travelling(sums_of(*copies, classes, clip))
    tree = {name: torch.from_numpy(part) for name, part in sums._asdict().items()}
    return {
        "name": name,
        "clip": clip,
        "dimensions": embeddings.shape[1],
        "classes": classes,
        "repeats": repeats,
        "embeddings": packed(embeddings),
        "labels": labels,
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
    yield _split_case("nothing is held out", hops[:6], [0, 1] * 3, share=0.0)


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
        "undecidedReason": found.undecided_reason,
        "failureReason": found.failure_reason,
        "words": found.words,
    }


# ---- which model is used


def _thinned(windows: int, most: int) -> dict[str, Any]:
    whole = _windows(np.arange(float(windows)), [0] * windows)
    kept = evenly(whole, most)
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


if __name__ == "__main__":
    main()
