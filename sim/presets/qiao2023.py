"""Y. Qiao, H. Q. Le, C. S. Hong: Boosting Federated Learning Convergence with Prototype Regularization, 2023.

arXiv 2307.10575: 10 clients, 2000 training examples, Dirichlet 0.05, SGD 0.01 with momentum 0.5, batches of 8. The
paper's scores are mean accuracies over the last ten rounds (`server_accuracy_last_ten` in `sim.sweep.arena.measures`).
Section III-B cites Yurochkin et al. 2019 for Dir(α), who deal each class's examples among the clients. Where each
client's classes are drawn instead (`--set partition.axis=client`), clients have hardly more than one class.
"""

from __future__ import annotations

from sim.presets.preset import Preset

CLIENTS = 10
_DEPARTURES = (
    "100 rounds; the paper doesn't say how many, and its code isn't released",
    "Dirichlet: a draw is repeated until each client has 10 examples, and a client with its equal share gets nothing "
    "of further classes, as in the code of Yurochkin et al.; the paper doesn't say",
    "fedpr: the regularization is the squared error's mean over the features, as FedProto's code has it "
    "(distance=squared_sum leaves it undivided); the paper's words are 'the ℓ2 distance' (distance=norm), whose "
    "gradient outweighs the labels however near a prototype is",
    "fedpr: classes are told by the nearest prototype, as in algorithm 1, and by the head where none is known",
    "accuracy is the server's model's on all test images; the paper says 'top-1 average test accuracy' and not whose",
)


def _preset(data: str, epochs: int) -> Preset:
    partition = {"clients": CLIENTS, "alpha": 0.05, "axis": '"class"', "examples": 2000}
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
