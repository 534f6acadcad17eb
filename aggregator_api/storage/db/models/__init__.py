"""The tables, as typed SQLAlchemy models; weights are never in a column, only the sha256 of their blobs.

Times are Unix seconds. Ids grow with time, so that they serve as cursors of listings.
"""

from aggregator_api.storage.db.models.base import NAME, NAMES_A_DEVICE, SHA256, SIZE, Base, Blob
from aggregator_api.storage.db.models.federations import (
    DeviceRow,
    DeviceTagRow,
    FederationKind,
    FederationRow,
    ModelAliasRow,
    ModelVersionRow,
)
from aggregator_api.storage.db.models.rollouts import AdoptionRow, RolloutDeviceRow, RolloutRow, ScoreRow
from aggregator_api.storage.db.models.rounds import (
    ContributionRow,
    MaskedContributionRow,
    MetricRow,
    ParticipationRow,
    RoundRow,
    SecureSumDeviceRow,
    SecureSumRow,
    UpdateRow,
)
from aggregator_api.storage.db.models.server import (
    BEGINS_A_PHASE,
    AuditRow,
    CredentialRow,
    EndedAccessRow,
    EnrolmentTokenRow,
    EpochRow,
    EventRow,
    IdempotentRequestRow,
    LeaseRow,
    LedgerRow,
    WebSessionRow,
)

__all__ = [
    "BEGINS_A_PHASE",
    "NAME",
    "NAMES_A_DEVICE",
    "SHA256",
    "SIZE",
    "AdoptionRow",
    "AuditRow",
    "Base",
    "Blob",
    "ContributionRow",
    "CredentialRow",
    "DeviceRow",
    "DeviceTagRow",
    "EndedAccessRow",
    "EnrolmentTokenRow",
    "EpochRow",
    "EventRow",
    "FederationKind",
    "FederationRow",
    "IdempotentRequestRow",
    "LeaseRow",
    "LedgerRow",
    "MaskedContributionRow",
    "MetricRow",
    "ModelAliasRow",
    "ModelVersionRow",
    "ParticipationRow",
    "RolloutDeviceRow",
    "RolloutRow",
    "RoundRow",
    "ScoreRow",
    "SecureSumDeviceRow",
    "SecureSumRow",
    "UpdateRow",
    "WebSessionRow",
]
