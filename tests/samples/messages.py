"""One message of each kind with every field set, as the sample of a version has it; keys and names are made up."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from federation.plan import (
    Augmentation,
    DataSpec,
    DataStatistics,
    GroupWave,
    ImageInput,
    ModelSpec,
    Plan,
    PromotionSettings,
    PublicationSettings,
    RolloutSettings,
    RoundSettings,
    SecureSettings,
    Strict,
    TrainingConfig,
)
from federation.protocol import messages, signing, topics
from federation.protocol.messages import (
    Acknowledgement,
    AdoptionReport,
    Announcement,
    BlobPointer,
    DeviceStatus,
    Invitation,
    ModelRefusal,
    Notice,
    Offer,
    PlanRefusal,
    Release,
    ReleaseOrder,
    ReleaseReport,
    SumOrder,
    UpdateManifest,
    VersionScore,
)
from federation.protocol.signing import Kind
from har_pipeline import PipelineSettings

FEDERATION, DEVICE, INSTANCE = "walk", "ada", "cd" * 16
NOW = 1_795_000_000.25
SERVER_KEY, DEVICE_KEY = (
    Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"gaitway sample " + who).digest())
    for who in (b"server", b"device")
)
"""Only samples are signed with them."""


class Sample(NamedTuple):
    """A message; `kind` is None where it is never sent alone, or not signed."""

    message: Strict
    kind: Kind | None = None
    device: str = ""


def public_bytes(key: Ed25519PublicKey) -> bytes:
    """Return the 32 raw bytes."""
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def plan() -> Plan:
    """Return a plan in which every field is set; none of its values is a default by chance."""
    return Plan(
        labels=("still", "walking", "jogging"),
        task={"name": "segmentation", "ignore_index": 254},
        model=ModelSpec(name="har_cnn_alp", options={"channels": [8, 8], "feature_dim": 16, "prototypes": [8]}),
        alternatives=(ModelSpec(name="har_cnn", options={"channels": [8, 8]}),),
        method={"name": "fedali", "lambda": 0.25},
        training=TrainingConfig(
            classes=3, feature_dim=16, epochs=2, batch_size=8, optimizer="sgd", lr=0.05, momentum=0.5,
            weight_decay=0.001, seed=7, lr_schedule="polynomial", lr_power=0.8,
            augmentation=Augmentation(
                flip=0.5, padding=4, scale=(0.5, 2.0), brightness=0.1, contrast=0.2, saturation=0.3, rotation=0.5,
                degrees=30, sensor_loss=0.25,
            ),
            example_clip_norm=1.25, example_noise_multiplier=0.75,
        ),
        rounds=RoundSettings(
            rounds=5, clients_per_round=4, sampling="examples", cohort_tags=("pilot",), over_selection=1.5,
            minimum_clients=2, deadline_s=600.0, late="next", partial_work="use", staleness_exponent=0.75,
            max_weight_ratio=3.0, norm_factor=4.0, clip_norm=1.5, noise_multiplier=0.5, delta=1e-6, norm_after=9,
            interval_s=30.0, max_refused_updates=4, max_failed_rounds=6, noise_bands=3,
        ),
        secure=SecureSettings(
            mode="masked", min_devices=5, groups=2, colluding_share=0.25, lost_share=0.3, steps=512, max_change=2.0,
            max_value=32.0, max_weight=128, clip_norm=1000.0, noise_multiplier=0.5, stage_s=30.0,
            voucher="A" * 43 + "=",
        ),
        publication=PublicationSettings(interval_s=5.0, min_changes=3, max_wait_s=60.0, send_after_windows=7),
        promotion=PromotionSettings(min_devices=2, margin=0.03),
        packages={"methods:fedali": "gaitway-fedali 0.1"},
        rollout=RolloutSettings(
            mode="manual", waves=(GroupWave(tags=("pilot",)), 0.25, 1.0), success_threshold=0.7, soak_s=60.0,
            wave_timeout_s=3600.0, halt_share=0.2, halt_devices=3, own_models=True,
        ),
        data=DataSpec(
            pipeline=PipelineSettings().to_json(), input=ImageInput(kind="image", shape=(3, 32, 48), fit="pad"),
            normalization="federated",
            statistics=DataStatistics(count=640, total=(1.0, 2.0, 3.0, 0.1, 0.2, 0.3), square=(9.0,) * 6),
            split="temporal", test_share=0.25,
        ),
    )  # fmt: skip


def _signed(kind: Kind, message: Strict) -> str:
    return signing.wrap(kind, FEDERATION, DEVICE, messages.write(message), DEVICE_KEY.sign).decode()


def samples() -> dict[str, Sample]:
    """Return the messages by the name of their file."""
    score = VersionScore(metric="macro_f1", value=810_000, trivial=210_000, devices=4, working=3, measured="updates")
    gains = {"personalized": (12, 340, 90, 12, 1_200, 11, -500, 0, 0)}
    pointer = BlobPointer(sha256="ab" * 32, size=10, url="/v1/blobs/" + "ab" * 32, score=score, gains=gains)
    release = Release(rollout=2, version=3, round=3, model=pointer)
    order = ReleaseOrder(serial=41, released=release, candidate=release, share_millionths=250_000, withdrawn=(1,))
    place: dict[str, Any] = {"instance": INSTANCE, "epoch": 2}
    report = ReleaseReport(**place, rollout=2, answer="rolled_back", metric="macro_f1", score=0.5, reason="worse")
    adoption = AdoptionReport(
        **place, round=3, source="global", answer="refused", metric="macro_f1", score=0.6, trivial=0.2, reason="worse"
    )
    announcement = Announcement(
        schema_version=1, federation=FEDERATION, **place, restored_at=NOW - 60, serial=40, state="collecting", round=3,
        invited=4, deadline=NOW + 600, plan=plan(), model=pointer, release=order, chunk_bytes=4096,
        presence_check="a1b2", created=NOW, expires=1_795_086_401, continuous=True, feature_model=pointer,
        program=pointer, revoked="gaitway-signed/1 revoked",
    )  # fmt: skip
    manifest = UpdateManifest(
        schema_version=1, update_id="r3-ada-0123456789abcdef", federation=FEDERATION, instance=INSTANCE, client=DEVICE,
        round=3, method="fedali", base_version="ab" * 32, examples=120, steps=30, class_counts=(40, 50, 30),
        precision="int8", compression="zstd", size=10, sha256="ef" * 32, chunk_bytes=4096, nonce="0123456789",
        created=NOW, metrics={"works_after": 1.0}, sequence=1_795_000_000_250, withdraw=False, runtime="onnx",
        processor="cuda", gains={"midway": (1, 34, 9, 1, 120, 1, -50, 0, 0)},
    )  # fmt: skip
    keys = UpdateManifest(
        update_id="r3-ada-fedcba9876543210", federation=FEDERATION, instance=INSTANCE, client=DEVICE, round=3,
        method="fedali", base_version="ab" * 32, examples=0, steps=0, size=10, sha256="ef" * 32, chunk_bytes=4096,
        nonce="9876543210", created=NOW, sum="keys",
    )  # fmt: skip
    refusal = PlanRefusal(**place, serial=40, reason="min_devices")
    unusable = ModelRefusal(**place, model="ab" * 32, reason="NaN")
    status = DeviceStatus(
        schema_version=1, state="ready", round=3, examples=120, detail="waits", metrics={"loss": 0.5}, release=report,
        adoption=adoption, session="5e55", number=8, sums=1_795_000_000_250, refusal=_signed(Kind.REFUSAL, refusal),
        unusable=_signed(Kind.MODEL_REFUSAL, unusable),
    )  # fmt: skip
    acknowledgement = Acknowledgement(
        schema_version=1, update_id=manifest.update_id, nonce=manifest.nonce, status="send", next_chunk=2, reason="gap"
    )
    invitation = Invitation(
        schema_version=1, **place, round=3, model=pointer, voucher="gaitway-signed/1 voucher",
        sum=SumOrder(kind="members", body="{}", shared=pointer),
    )  # fmt: skip
    return {
        "announcement": Sample(announcement, Kind.ANNOUNCEMENT),
        "invitation": Sample(invitation, Kind.INVITATION, DEVICE),
        "offer": Sample(Offer(schema_version=1, **place, rollout=2), Kind.OFFER, DEVICE),
        "acknowledgement": Sample(acknowledgement, Kind.ACKNOWLEDGEMENT, DEVICE),
        "notice": Sample(Notice(schema_version=1, session="5e55", reason="another one"), Kind.NOTICE, DEVICE),
        "update_manifest": Sample(manifest, Kind.UPDATE, DEVICE),
        "keys_manifest": Sample(keys, Kind.UPDATE, DEVICE),
        "device_status": Sample(status),
        "release_order": Sample(order),
        "release_report": Sample(report),
        "adoption_report": Sample(adoption),
        "plan_refusal": Sample(refusal),
        "model_refusal": Sample(unusable),
    }


def topic_names() -> dict[str, str]:
    """Return every topic of a device and its server by what it is for."""
    step = "r3-ada"
    return {
        "announce": topics.announce(FEDERATION),
        "status": topics.status(FEDERATION, DEVICE),
        "ack": topics.ack(FEDERATION, DEVICE),
        "invitation": topics.invitation(FEDERATION, DEVICE),
        "offer": topics.offer(FEDERATION, DEVICE),
        "notice": topics.notice(FEDERATION, DEVICE),
        "begin": topics.update(FEDERATION, DEVICE, step, "begin"),
        "chunk": topics.update(FEDERATION, DEVICE, step, "chunk", 2),
        "end": topics.update(FEDERATION, DEVICE, step, "end"),
    }


def left_unset(value: Any, where: str = "message") -> list[str]:
    """Name the fields of a message, and of what it holds, that nobody has set or that say nothing."""
    if isinstance(value, tuple):
        return [name for i, one in enumerate(value) for name in left_unset(one, f"{where}.{i}")]
    if not isinstance(value, Strict):
        return []
    found = [f"{where}.{name}" for name in type(value).model_fields if name not in value.model_fields_set]
    for name in value.model_fields_set:
        held = getattr(value, name)
        found += [f"{where}.{name}"] if held is None or held == () else left_unset(held, f"{where}.{name}")
    return found
