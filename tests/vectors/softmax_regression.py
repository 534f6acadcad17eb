"""Make `softmax_regression.json`: scikit-learn's logistic regression on embeddings, which a phone's own head equals.

After a change of the rules: `python -m tests.vectors.softmax_regression`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

PATH = Path(__file__).with_suffix(".json")
SHOWN = 8


def vectors() -> dict[str, Any]:
    """Return everything that the file holds."""
    return {
        "about": "scikit-learn's LogisticRegression (lbfgs, tol 1e-10) behind StandardScaler; weight and bias are of "
        "the embeddings as they are. A class without examples has no row.",
        "cases": list(_cases()),
    }


def _cases() -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(7)
    y = random.choice([0, 1, 3], 90, p=[0.6, 0.3, 0.1])
    near = random.normal(size=(4, 12))[y] + 1.5 * random.normal(size=(90, 12))
    # as of a network that ends in a ReLU: one unit never answers, another is always 2
    near[:, 4], near[:, 5] = -1, 2
    yield _case("three of four classes, unlike in number", np.maximum(near, 0) * 10.0 ** random.integers(-3, 3, 12), y)
    y = np.arange(60) % 5
    yield _case("classes that a plane divides", 8 * random.normal(size=(5, 6))[y] + random.normal(size=(60, 6)), y)
    yield _case("more numbers than examples", random.normal(size=(12, 20)), np.arange(12) % 3, c=100.0)
    yield _case("nothing to learn", np.ones((9, 2)), np.array([0, 0, 0, 0, 1, 1, 1, 2, 2]))


def _case(name: str, embeddings: np.ndarray, y: np.ndarray, c: float = 1.0) -> dict[str, Any]:
    embeddings = embeddings.astype(np.float32)
    scaler, head = StandardScaler(), LogisticRegression(C=c, tol=1e-10, max_iter=100_000)
    fitted = make_pipeline(scaler, head).fit(embeddings.astype(np.float64), y)
    weight = head.coef_ / scaler.scale_
    return {
        "name": name,
        "dimensions": embeddings.shape[1],
        "c": c,
        "embeddings": base64.b64encode(embeddings.astype("<f4").tobytes()).decode(),
        "labels": y.tolist(),
        "learnt": head.classes_.tolist(),
        "weight": weight.tolist(),
        "bias": (head.intercept_ - weight @ scaler.mean_).tolist(),
        "probabilities": fitted.predict_proba(embeddings[:SHOWN].astype(np.float64)).tolist(),
    }


def text() -> str:
    """Write the file with a case a line."""
    content = vectors()
    cases = ",\n  ".join(json.dumps(case, separators=(",", ":")) for case in content["cases"])
    return f'{{\n "about": {json.dumps(content["about"])},\n "cases": [\n  {cases}\n ]\n}}\n'


if __name__ == "__main__":
    PATH.write_text(text())
