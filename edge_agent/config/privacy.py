"""What a plan must promise before this device takes part: the section [privacy] of the agent's settings."""

from __future__ import annotations

from pydantic import Field

from edge_agent.config.section import Section
from federation.privacy.promises import PrivacyPromises


class PrivacySection(Section):
    """What the server's plan must promise; whatever isn't set here stays as it was promised at enrolment."""

    require: PrivacyPromises = Field(
        default=PrivacyPromises(),
        description='such as { mode = "masked", min_devices = 50, min_colluding_share = 0.3, min_noise = 1.1 }; '
        "also min_example_noise",
    )
