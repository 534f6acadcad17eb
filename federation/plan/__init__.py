"""A federation's plan, fixed before its first round, as JSON: the model, the method, the training, the rounds.

The simulation reads it from `--plan` and its command line, the server from REST, and devices from the announcement.
"""

from federation.plan.plan import Plan, live_incompatibility, window_change_incompatibility, with_packages
from federation.plan.releases import GroupWave, PromotionSettings, RolloutSettings, Wave, Waves
from federation.plan.rounds import PublicationSettings, RoundSettings, SecureSettings
from federation.plan.strict import Label, Name, Options, Strict, Text, Words
from federation.plan.training import (
    Augmentation,
    DataSpec,
    DataStatistics,
    ImageInput,
    ModelSpec,
    Normalization,
    Side,
    Split,
    TrainingConfig,
    image_input,
)

__all__ = [
    "Augmentation",
    "DataSpec",
    "DataStatistics",
    "GroupWave",
    "ImageInput",
    "Label",
    "ModelSpec",
    "Name",
    "Normalization",
    "Options",
    "Plan",
    "PromotionSettings",
    "PublicationSettings",
    "RolloutSettings",
    "RoundSettings",
    "SecureSettings",
    "Side",
    "Split",
    "Strict",
    "Text",
    "TrainingConfig",
    "Wave",
    "Waves",
    "Words",
    "image_input",
    "live_incompatibility",
    "window_change_incompatibility",
    "with_packages",
]
