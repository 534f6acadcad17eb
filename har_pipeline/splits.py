"""Training and test sets: within a client (temporal, and two that leak for comparison), and between clients.

Windows overlap, so a random split of windows lets a model see parts of its test windows. `temporal` does not leak;
`random80` (the 80/20 of Ek et al. 2024) does everywhere. `kfold7_3` is what their code does: ten stratified folds
without shuffling, of which seven train and the last three test. Those folds are contiguous in time within each class,
so it leaks too, but only where they meet: on MotionSense 3 % of its test windows share samples with a training window,
96 % of random80's. Both say so.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

import numpy as np

from gaitway.errors import did_you_mean
from har_pipeline.errors import SettingsError
from har_pipeline.settings import PipelineSettings
from har_pipeline.streaming.windows import ClientWindows, WindowedDataset

KINDS = ("temporal", "random80", "kfold7_3")
FOLDS, TEST_FOLDS = 10, 3


class Split(NamedTuple):
    """Indices of training and test windows, ascending; leaks: test windows may overlap training windows."""

    train: np.ndarray
    test: np.ndarray
    leaks: bool


def split_client(
    windows: ClientWindows,
    kind: Literal["temporal", "random80", "kfold7_3"] = "temporal",
    *,
    test_share: float = 0.2,
    seed: int = 0,
    fold: int = 0,
    settings: PipelineSettings,
) -> Split:
    """Split one client's windows.

    temporal: of each class the last `test_share` in time is tested (of two windows or more at least one), and every
    window that overlaps a test window is dropped. random80: a seeded random `test_share`. A share of 0 leaves every
    window to train on. kfold7_3: three of ten stratified folds, contiguous in time within each class; fold 0 tests on
    the last three, fold n on those 3·n further, counted in a circle. Raises SettingsError.
    """
    if kind not in KINDS:
        raise SettingsError(f"split {kind!r}; {did_you_mean(kind, KINDS)}")
    if not 0 <= test_share < 1:
        raise SettingsError(f"test_share is {test_share}; expected 0 (no test windows) or more, and less than 1")
    if not test_share and kind != "kfold7_3":
        return Split(np.arange(len(windows)), np.arange(0), leaks=False)
    if kind == "temporal":
        return _temporal(windows, test_share, settings.window_s)
    if kind == "random80":
        test = np.random.default_rng(seed).permutation(len(windows)) < round(test_share * len(windows))
    else:
        tested = (FOLDS - TEST_FOLDS + TEST_FOLDS * fold + np.arange(TEST_FOLDS)) % FOLDS
        test = np.isin(_stratified_folds(windows), tested)
    return Split(np.flatnonzero(~test), np.flatnonzero(test), leaks=True)


def _temporal(windows: ClientWindows, test_share: float, window_s: float) -> Split:
    test = np.zeros(len(windows), dtype=bool)
    for label in np.unique(windows.y):
        members = np.flatnonzero(windows.y == label)
        members = members[np.argsort(windows.start_s[members], kind="stable")]
        if len(members) > 1:
            test[members[-max(1, round(test_share * len(members))) :]] = True
    overlapping = overlaps(windows.start_s, windows.start_s[test], window_s)
    return Split(np.flatnonzero(~test & ~overlapping), np.flatnonzero(test), leaks=False)


def cut_validation(
    windows: ClientWindows, train: np.ndarray, share: float, settings: PipelineSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Divide a client's training windows (n,), indices, into what is left to train on and a validation set.

    Of each class the last `share` in time, round(share · n), is for validation, and every training window that overlaps
    one of these is dropped, as at the cut before the test set. A class's tail stays where cutting it would leave some
    class without a training window. Raises SettingsError.
    """
    if not 0 <= share <= 0.5:
        raise SettingsError(f"the share of validation is {share}; it must lie between 0 (none) and 0.5")
    left, validation = train, train[:0]
    for label in np.unique(windows.y[train]):
        members = train[windows.y[train] == label]
        members = members[np.argsort(windows.start_s[members], kind="stable")]
        tail = np.concatenate([validation, members[len(members) - round(share * len(members)) :]])
        rest = np.setdiff1d(train, tail)
        rest = rest[~overlaps(windows.start_s[rest], windows.start_s[tail], settings.window_s)]
        if len(np.unique(windows.y[rest])) == len(np.unique(windows.y[train])):
            left, validation = rest, np.sort(tail)
    return left, validation


def session_folds(windows: ClientWindows, folds: int, window_s: float) -> list[Split]:
    """Split one client's windows `folds` times: fold k tests on every `folds`-th session, beginning with the k-th.

    Of a class whose windows would all be in one fold, fold k tests on the k-th part in time, which is contiguous; parts
    differ by one window at most. Windows that overlap a test window are dropped from the training. A fold without
    training windows of two classes or without test windows is left out.
    """
    number = np.unique(windows.session, return_inverse=True)[1] % folds
    for label in np.unique(windows.y):
        members = np.flatnonzero(windows.y == label)
        if len(np.unique(number[members])) == 1:
            members = members[np.argsort(windows.start_s[members], kind="stable")]
            number[members] = np.arange(len(members)) * folds // len(members)
    found = []
    for fold in range(folds):
        test = number == fold
        train = ~test & ~overlaps(windows.start_s, windows.start_s[test], window_s)
        if test.any() and len(np.unique(windows.y[train])) > 1:
            found.append(Split(np.flatnonzero(train), np.flatnonzero(test), leaks=False))
    return found


def has_sessions(windows: ClientWindows) -> bool:
    """Tell whether some class has windows of several sessions, so that one can be left out."""
    return any(len(np.unique(windows.session[windows.y == label])) > 1 for label in np.unique(windows.y))


def overlaps(start_s: np.ndarray, other_s: np.ndarray, window_s: float) -> np.ndarray:
    """Tell for each window that starts at start_s (n,) whether it shares time with one of other_s (m,)."""
    if not len(other_s):
        return np.zeros(len(start_s), dtype=bool)
    ordered = np.sort(other_s)
    after = np.searchsorted(ordered, start_s)
    distance_next = ordered[np.minimum(after, len(ordered) - 1)] - start_s
    distance_last = start_s - ordered[np.maximum(after - 1, 0)]
    # Windows that only touch share no sample; a microsecond absorbs the rounding of epoch times.
    near = window_s - 1e-6
    shared: np.ndarray = (np.abs(distance_next) < near) | (np.abs(distance_last) < near)
    return shared


def _stratified_folds(windows: ClientWindows) -> np.ndarray:
    """Number each window's fold (n,) as scikit-learn's StratifiedKFold does without shuffling.

    The windows, class after class in the order in which the classes first come, are dealt to the folds in turn; that
    says only how many of a class a fold gets. Which ones follows from time: a fold's windows of a class are neighbours.
    """
    in_time = np.argsort(windows.start_s, kind="stable")
    y = windows.y[in_time]
    _, first, codes = np.unique(y, return_index=True, return_inverse=True)
    codes = np.argsort(np.argsort(first))[codes]  # classes by their first window
    dealt = [np.bincount(np.sort(codes)[fold::FOLDS], minlength=len(first)) for fold in range(FOLDS)]
    folds = np.empty(len(y), dtype=np.int64)
    for code, counts in enumerate(np.array(dealt).T):
        folds[in_time[codes == code]] = np.repeat(np.arange(FOLDS), counts)
    return folds


def leave_subjects_out(
    dataset: WindowedDataset, subjects: Collection[str] | int, *, seed: int = 0
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (training clients, test clients): all clients of the named subjects, or of so many drawn, are left out.

    Raises SettingsError for an unknown subject, or when either side would be empty.
    """
    return _leave_out(dataset, "subject", subjects, seed)


def leave_devices_out(
    dataset: WindowedDataset, devices: Collection[str] | int, *, seed: int = 0
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (training clients, test clients), as leave_subjects_out but by device or body place."""
    return _leave_out(dataset, "device", devices, seed)


def _leave_out(
    dataset: WindowedDataset, what: Literal["subject", "device"], chosen: Collection[str] | int, seed: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    known = dataset.subjects if what == "subject" else dataset.devices
    key = dataset.subject_of if what == "subject" else dataset.device_of
    if isinstance(chosen, int):
        if not 0 < chosen < len(known):
            raise SettingsError(f"cannot leave out {chosen} of {len(known)} {what}s; leave at least one on each side")
        chosen = set(np.random.default_rng(seed).permutation(np.array(known))[:chosen].tolist())
    for name in chosen:
        if name not in known:
            raise SettingsError(f"unknown {what} {name!r}; {did_you_mean(name, known)}")
    test = tuple(client for client in dataset.clients if key(client) in chosen)
    train = tuple(client for client in dataset.clients if client not in test)
    if not train or not test:
        raise SettingsError(f"leaving out {sorted(chosen)} leaves one side without clients")
    return train, test
