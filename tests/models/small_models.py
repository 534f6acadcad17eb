"""Every network of the table in a size that runs in float64 under vmap in a moment; two options that change it much."""

from typing import Any

import torch

from models import MODELS, Model, build

SMALL: dict[str, dict[str, Any]] = {
    "hart": {"blocks": 2, "feature_dim": 32, "mlp": 24, "head_width": 20},
    "hart_alp": {"blocks": 2, "feature_dim": 32, "mlp": 24, "head_width": 20, "prototypes": [50, 9]},
    "har_cnn": {"channels": [8, 16], "feature_dim": 24, "hidden": 10},
    "har_cnn_alp": {"channels": [8, 16], "feature_dim": 24, "hidden": 10, "prototypes": [13], "alp": {"gamma": 0.5}},
    "dense": {"input_shape": [7], "hidden": [6, 8]},
    "mnist_cnn": {"input_shape": [1, 20, 24], "channels": [3, 4], "hidden": 16},
    "femnist_cnn": {"input_shape": [1, 20, 24], "channels": [3, 4], "hidden": 16},
    "margin_cnn": {"input_shape": [1, 8, 12], "channels": [3, 4], "hidden": 16},
    "celeba_cnn": {"input_shape": [3, 16, 32], "channels": [8, 8, 8, 8]},
    "public_cnn": {"input_shape": [3, 10, 8], "channels": [3, 4], "hidden": 16},
    "vit_tiny": {"input_shape": [3, 8, 12], "feature_dim": 12, "blocks": 2, "mlp": 16},
    "vit_tiny_alp": {"input_shape": [3, 8, 12], "feature_dim": 12, "blocks": 2, "mlp": 16, "prototypes": [40, 7]},
    "resnet18": {"input_shape": [3, 32, 24], "width": 16},
    "mobilenet_v2": {"input_shape": [3, 34, 40], "width": 0.25},
    "deeplab_v3plus": {
        "input_shape": [3, 34, 41], "width": 0.25, "channels": 8, "quarter_channels": 8, "dilations": [2, 3],
    },
    "segmenter_small": {"input_shape": [3, 18, 26], "channels": [8, 8, 16, 16], "feature_dim": 8},
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, SMALL[name]) for name in MODELS} | {
    "har_cnn_alp, single updates": ("har_cnn_alp", SMALL["har_cnn_alp"] | {"alp_update": "single"}),
    "mnist_cnn, both dense layers in the head": ("mnist_cnn", SMALL["mnist_cnn"] | {"head_layers": 2}),
    "resnet18, frozen": ("resnet18", SMALL["resnet18"] | {"norm": "frozen", "stem_strides": [1, 4]}),
    "deeplab_v3plus, frozen": ("deeplab_v3plus", SMALL["deeplab_v3plus"] | {"norm": "frozen"}),
}


def small(case: str, **options: Any) -> Model:
    """Return the case's model in float64, always with the same weights."""
    torch.manual_seed(3)
    name, sizes = CASES[case]
    return build(name, classes=5, **(sizes | options)).double()
