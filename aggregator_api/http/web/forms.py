"""What an operator's forms hold: fields, presets to choose from, and what is derived from another federation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from aggregator_api.auth import sessions
from aggregator_api.core.errors import ForbiddenError, UnprocessableError
from aggregator_api.federations.checkpoints import UploadedCheckpoint
from aggregator_api.rollouts.service import SCHEDULES, STANDARD, release_settings
from federation.methods import METHODS
from federation.plan import Normalization, Plan
from gaitway.errors import first_problem
from gaitway.input_spec import InputSpec, LowPass
from gaitway.plain_text import toml_tables
from gaitway.tasks import DEFAULT_TASK

if TYPE_CHECKING:
    from models.checkpoint import CheckpointInfo

MEDIA_TYPE = "application/x-www-form-urlencoded"
UPLOADS = frozenset({"/checkpoints"})
"""Pages' paths that take a file instead of a form, as its bytes; the session's token is in a header."""
MAX_FIELDS = 100

Form = dict[str, str]
Fields = TypeVar("Fields", bound=BaseModel)


async def checked_form(request: Request) -> Form:
    """Return the fields of a form; of requests that change nothing, none.

    Raises:
        ForbiddenError: if it does not come from a page of this session.
        UnprocessableError: if it is no form.
    """
    if request.method in ("GET", "HEAD"):
        return {}
    if not sessions.from_this_site(request.headers):
        raise ForbiddenError(
            "the form comes from another site; open this server's page yourself, and send it from there"
        )
    form = {} if request.url.path in UPLOADS else await _read(request)
    session = getattr(request.state, "session", "")
    given = form.pop("csrf", "") or request.headers.get(sessions.CSRF_HEADER, "")
    # who logs in has no session yet, and whose session ended in another tab may still press 'Log out'
    is_free = request.url.path == "/login" or (request.url.path == "/logout" and not session)
    if not is_free and not (session and sessions.is_csrf_token(given, session)):
        raise ForbiddenError("the form is of another session, perhaps of one that has ended; load the page again")
    return form


FormDep = Annotated[Form, Depends(checked_form)]


async def _read(request: Request) -> Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MEDIA_TYPE:
        raise UnprocessableError(f"expected a form ({MEDIA_TYPE}), got {kind[:80] or 'nothing that says what it is'}")
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise UnprocessableError(f"the form cannot be read: {error}") from error
    return dict(fields)


def pressed(request: Request) -> str:
    """Return what a button does: the last word of its route, which for several buttons is one function."""
    route: APIRoute = request.scope["route"]
    return route.path.rpartition("/")[2]


def validated(model: type[Fields], fields: Mapping[str, Any]) -> Fields:
    """Return the model of a form's fields; raises UnprocessableError, which names the field that is wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise UnprocessableError(first_problem(error, input_shown=True, model=model)) from error


def whole_number(form: Form, field: str) -> int | None:
    """Read a field of digits, None where it is empty; raises UnprocessableError for anything else."""
    text = form.get(field, "").strip()
    try:
        return int(text) if text else None
    except ValueError as error:
        raise UnprocessableError(f"{field}: expected a whole number, got {text[:40]!r}") from error


def words_of(text: str) -> list[str]:
    """Split a list that a person has typed: by commas, semicolons or lines, without empty entries."""
    return [word for part in text.replace(";", ",").replace("\n", ",").split(",") if (word := part.strip())]


COPIED = ("task", "alternatives", "data", "training", "method")
"""Parts of a plan that go with a model; how its rounds are drawn and its models released is chosen anew."""
_FIELDS = {"training": ("classes", "feature_dim", "epochs", "batch_size", "lr"), "method": ("name",)}
"""Of these, what the form has fields for, or makes itself."""


def derived_fields(plan: Plan, name: str, version: int) -> dict[str, str]:
    """Fill the form in with a federation's network, options, labels, normalization and training, and its weights."""
    training = plan.training
    fields = {
        "labels": "\n".join(plan.labels),
        "model": plan.model.name,
        "method": str(plan.method.get("name", "")),
        "epochs": str(training.epochs),
        "batch_size": str(training.batch_size),
        "lr": f"{training.lr:g}",
        "normalization": plan.data.normalization,
        "secure": plan.secure.mode,
        "start_federation": name,
        "start_version": str(version),
        "further": toml_tables(_further(plan)),
    }
    return {**EMPTY, **fields}


def checkpoint_fields(found: UploadedCheckpoint) -> dict[str, str]:
    """Fill the form in with a checkpoint's network, options, labels and normalization, and its weights.

    A checkpoint does not say how it was trained, but for the method's name.
    """
    info = found.info
    method = METHODS.get(info.method)
    trains_live = method is not None and method().has_global_model and not method.traits.pools_data
    normalization, data = _data(info)
    further: dict[str, Any] = {"data": data} if data else {}
    if info.options:
        further["model"] = {"options": info.options}
    if info.task != {"name": DEFAULT_TASK.name}:
        further["task"] = info.task
    fields = {
        "labels": "\n".join(info.labels),
        "model": info.model,
        "method": info.method if trains_live else "fedavg",
        "normalization": normalization,
        "start_checkpoint": found.sha256,
        "further": toml_tables(further),
    }
    return {**EMPTY, **fields}


def _data(info: CheckpointInfo) -> tuple[str, dict[str, Any]]:
    """Return how a checkpoint's examples were normalized, and what else the plan's `data` has to say of them."""
    from models import MODELS  # who fills in a form for a checkpoint has loaded it already

    taken = info.input
    data: dict[str, Any] = {}
    if taken.kind == "image":
        data["input"] = {"kind": "image", "shape": list(taken.shape), "fit": taken.fit}
    elif pipeline := _pipeline(taken):
        data["pipeline"] = pipeline
    mean, std = list(taken.mean), list(taken.std)
    if MODELS[info.model].takes_raw_input:
        return "none", data
    if info.normalization in ("client", "none"):  # what the mean and deviation of a server's model do not tell
        return info.normalization, data
    if mean == [0.0] * len(mean) and std == [1.0] * len(std):
        return "client", data
    square = [m * m + s * s for m, s in zip(mean, std, strict=True)]
    return "federated", {**data, "statistics": {"count": 1, "total": mean, "square": square}}


def _pipeline(taken: InputSpec) -> dict[str, Any]:
    """Return what of a model's windows is made otherwise than by default; the first three go together."""
    cut: dict[str, Any] = {"window": taken.shape[0], "rate_hz": taken.rate_hz, "stride": taken.stride}
    found = {} if cut == {"window": 128, "rate_hz": 50.0, "stride": 64} else cut
    if taken.filter is not None and taken.filter.anti_alias != LowPass.anti_alias:
        found["anti_alias"] = taken.filter.anti_alias
    return found


def _further(plan: Plan) -> dict[str, Any]:
    written = plan.model_dump(mode="json", exclude_defaults=True, exclude_none=True, include=set(COPIED))
    found: dict[str, Any] = {}
    for part, value in written.items():
        left_out = (*_FIELDS.get(part, ()), *(("normalization",) if part == "data" else ()))
        found[part] = {k: v for k, v in value.items() if k not in left_out} if isinstance(value, dict) else value
    if plan.model.options:
        found["model"] = {"options": plan.model.options}
    return found


RELEASES: dict[str, tuple[str, dict[str, object]]] = {
    **{
        name: (f"in waves, by itself: {schedule.label}", release_settings("automatic", name))
        for name, schedule in SCHEDULES.items()
    },
    "manual": ("in waves, when an operator rolls a version out", release_settings("manual")),
    "off": ("each device chooses the model that does best on its own windows", release_settings("off")),
}
"""How models reach devices: the words of the choice, and a plan's `rollout`."""
NORMALIZATIONS = tuple(
    choice for choice in get_args(Normalization) if choice != "pooled"
)  # which only a simulation can

ACTIVITIES = "sitting\nstanding\nwalking\nclimbingup\nclimbingdown\nrunning"
"""What most data sets of phones have in common."""


class FormPreset(NamedTuple):
    """What a preset is for, in a line, and the fields that it fills in; the others keep the plan's defaults."""

    description: str
    fields: dict[str, str]


PRESETS: dict[str, FormPreset] = {
    "exact": FormPreset(
        "The first choice: exact sums of features of raw windows. No rounds: a device sends when it has something new, "
        "phones and boards alike, and a version without it follows when it leaves.",
        {
            "labels": ACTIVITIES,
            "model": "har_features",
            "method": "analytic",
            "normalization": "none",
            "further": "[publication]\ninterval_s = 60\nmin_changes = 1",
            # each version is a sum over all devices, which take up the newest: a wave would only make it late
            "release": "off",
        },
    ),
    "first": FormPreset(
        "A first federation in rounds: FedAvg on a small CNN, three short rounds; one device is enough.",
        {"labels": ACTIVITIES, "model": "har_cnn", "method": "fedavg", "rounds": "3", "epochs": "5"},
    ),
    "adaptive": FormPreset(
        "HART with ALP layers (Alignment with Prototypes), as in FedAli (Ek et al. 2024): 50 rounds of five epochs.",
        {"labels": ACTIVITIES, "model": "hart_alp", "method": "fedali", "rounds": "50", "epochs": "5"},
    ),
    "personal": FormPreset(
        "Each device keeps its own head (FedPer): the shared part alone travels, and there is no global model.",
        {
            "labels": ACTIVITIES,
            "model": "har_cnn",
            "method": "fedper",
            "rounds": "20",
            "epochs": "5",
            "release": "off",
        },
    ),
    "fleet": FormPreset(
        "A large fleet: 50 devices a round, a quarter more invited, closed after an hour; late updates count next.",
        {
            "labels": ACTIVITIES,
            "model": "har_cnn",
            "method": "fedavg",
            "rounds": "100",
            "epochs": "2",
            "clients_per_round": "50",
            "minimum_clients": "20",
            "deadline_s": "3600",
            "further": '[rounds]\nover_selection = 1.25\nlate = "next"',
            "release": "careful",
        },
    ),
    "private": FormPreset(
        "Secure sums: the server learns the sum of a round's updates, and no single one. Needs three enrolled devices, "
        "phones or boards.",
        {
            "labels": ACTIVITIES,
            "model": "har_cnn",
            "method": "fedavg",
            "secure": "masked",
            "rounds": "20",
            "epochs": "2",
            "minimum_clients": "3",
            "deadline_s": "3600",
        },
    ),
    "robust": FormPreset(
        "Devices that cannot all be trusted: the coordinate-wise median, and updates that go too far left out.",
        {
            "labels": ACTIVITIES,
            "model": "har_cnn",
            "method": "fedavg",
            "rounds": "20",
            "epochs": "2",
            "minimum_clients": "5",
            "further": '[method]\naggregation = "median"\n\n[rounds]\nnorm_factor = 5.0',
        },
    ),
}
FIRST = "exact"
EMPTY = {
    "name": "",
    "labels": "",
    "model": "",
    "method": "",
    "rounds": "10",
    "epochs": "1",
    "batch_size": "64",
    "lr": "0.001",
    "clients_per_round": "",
    "minimum_clients": "1",
    "deadline_s": "",
    "normalization": "client",
    "release": STANDARD,
    "secure": "off",
    "further": "",
    "start_federation": "",
    "start_version": "",
    "start_checkpoint": "",
}
"""The form's fields, with the plan's own defaults."""


def filled(preset: str) -> dict[str, str]:
    """Return the form's fields as a preset fills them in; an unknown one is the first."""
    return {**EMPTY, **PRESETS.get(preset, PRESETS[FIRST]).fields}
