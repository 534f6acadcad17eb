"""Networks for human activity recognition and vision, built by name from one table, and the ALP layer."""

from gaitway.input_spec import InputSpec
from models.errors import CheckpointError, ModelError, OptionError, UnknownModelError
from models.model import Model, ModelOutput
from models.registry import MODELS, build

__all__ = [
    "MODELS",
    "CheckpointError",
    "InputSpec",
    "Model",
    "ModelError",
    "ModelOutput",
    "OptionError",
    "UnknownModelError",
    "build",
]
