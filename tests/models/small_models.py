"""Every network of the table in a size that runs in float64 under vmap in a moment; two options that change it much."""

from typing import Any

import torch

from models import MODELS, Model, build

SMALL: dict[str, dict[str, Any]] = {name: dict(model.small) for name, model in MODELS.items()}
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, SMALL[name]) for name in MODELS} | {
    "har_cnn_alp, single updates": ("har_cnn_alp", SMALL["har_cnn_alp"] | {"alp_update": "single"}),
    "mnist_cnn, both dense layers in the head": ("mnist_cnn", SMALL["mnist_cnn"] | {"head_layers": 2}),
    "margin_cnn, last layer": ("margin_cnn", SMALL["margin_cnn"] | {"features_at": "last_layer"}),
    "segmenter_small, encoder": ("segmenter_small", SMALL["segmenter_small"] | {"features_at": "encoder"}),
    "resnet18, frozen": ("resnet18", SMALL["resnet18"] | {"norm": "frozen", "stem_strides": [1, 4]}),
    "deeplab_v3plus, frozen": ("deeplab_v3plus", SMALL["deeplab_v3plus"] | {"norm": "frozen"}),
}


def small(case: str, **options: Any) -> Model:
    """Return the case's model in float64, always with the same weights."""
    torch.manual_seed(3)
    name, sizes = CASES[case]
    return build(name, classes=5, **(sizes | options)).double()
