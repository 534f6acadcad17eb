"""Y. Qiao, H. Q. Le, C. S. Hong: Boosting Federated Learning Convergence with Prototype Regularization, 2023.

arXiv 2307.10575: 10 clients, 2000 training examples, Dirichlet 0.05, SGD 0.01 with momentum 0.5, batches of 8. The
scores are means over the last ten rounds. Neither the rounds nor the reading of Dirichlet is said: 100, by client.
"""

from __future__ import annotations

from sim.presets.preset import Preset

CLIENTS = 10
_DEPARTURES = (
    "100 rounds; the paper does not say how many, nor is its code released",
    "Dirichlet 0.05 over each client's classes; the paper does not say whether by client or by class",
    "fedpr: the regularization is the squared error; the paper's words are 'the ℓ2 distance' (distance=norm), whose "
    "gradient outweighs the labels however near a prototype is",
    "fedpr: classes are told by the nearest prototype, as in algorithm 1, and by the head where none is known",
    "the paper's scores are means over the last ten rounds; here those of a round (rounds.jsonl has every one)",
)


def _preset(data: str, epochs: int) -> Preset:
    partition = {"clients": CLIENTS, "alpha": 0.05, "axis": '"client"', "examples": 2000}
    return Preset(
        paper="Qiao et al. 2023",
        about=f"{data}, Dirichlet 0.05, {epochs} local epoch{'s' if epochs > 1 else ''}; compare fedpr with fedavg",
        clients=CLIENTS,
        needs=data,
        options={
            "data": data,
            "model": "mnist_cnn",
            "method": "fedpr",
            "rounds": 100,
            "epochs": epochs,
            "batch": 8,
            "lr": 0.01,
            "optimizer": "sgd",
            "momentum": 0.5,
            "partition": "dirichlet",
            "set": [f"partition.{key}={value}" for key, value in partition.items()],
        },
        departures=_DEPARTURES,
    )


PRESETS = {"qiao2023-mnist": _preset("mnist", 1), "qiao2023-fashion": _preset("fashion_mnist", 5)}
