"""Labels as people read them; the phone's app has the same words, generated from here."""

from __future__ import annotations

SPELLED_OUT = {
    "dws": "stairs down",
    "ups": "stairs up",
    "wlk": "walking",
    "jog": "jogging",
    "sit": "sitting",
    "std": "standing",
    "climbingup": "climbing up",
    "climbingdown": "climbing down",
}
"""Names that data sets publish, where people would not guess them."""


def label_text(label: str) -> str:
    """Return a label as people read it: stairs_up is 'stairs up', and so is MotionSense's ups."""
    if label in SPELLED_OUT:
        return SPELLED_OUT[label]
    words = label.replace("_", " ")
    return words.lower() if len(words) > 3 and words == words.upper() else words
