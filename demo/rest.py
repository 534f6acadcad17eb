"""The operator's view of a federation: created and watched over the server's REST API."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from federation.plan import Plan
from processes import DemoError

CREATE_S = 300.0
"""For a federation with phones the server loads the exporter, and exports their model."""


@dataclass(frozen=True)
class Device:
    """A device's last word to the server."""

    name: str
    state: str
    examples: int
    detail: str


@dataclass(frozen=True)
class Snapshot:
    """Where the federation stands."""

    elapsed_s: float
    status: str
    round: int
    rounds: int
    phase: str | None
    received: int
    invited: int
    devices: tuple[Device, ...]

    @property
    def headline(self) -> str:
        """One line for a person."""
        if self.status == "finished":
            return f"finished after {self.round} rounds; each device exports, checks and chooses its model"
        if self.phase is None:
            return "waiting for devices" if self.round == 0 else f"round {self.round} of {self.rounds} is over"
        return f"round {self.round} of {self.rounds}: {self.phase}, {self.received} of {self.invited} updates"


def connect(base_url: str, key_file: Path) -> httpx.Client:
    """Return the connections to a server on this machine, with the key in a file; whoever opens them closes them."""
    headers = {"Authorization": f"Bearer {key_file.read_text().strip()}"}
    return httpx.Client(base_url=base_url, timeout=httpx.Timeout(30.0, read=CREATE_S), trust_env=False, headers=headers)


class Operator:
    """A client of the REST API for one federation."""

    def __init__(self, http: httpx.Client, federation: str) -> None:
        self._http = http
        self._path = f"/v1/federations/{federation}"
        self._federation = federation
        self._began = time.monotonic()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def create(self, plan: Plan, *, name: str | None = None) -> None:
        """Create the federation, or another one of that name.

        Raises:
            DemoError: with the server's words if it refuses.
        """
        body: dict[str, Any] = {"name": name or self._federation, "plan": plan.model_dump(mode="json")}
        try:
            self._checked(self._http.post("/v1/federations", json=body))
        except httpx.HTTPError as error:
            raise DemoError(f"the server does not answer: {error}") from error

    def enrolment_token(self, federation: str, device: str) -> str:
        """Make a token that lets one device in without another approval.

        Raises:
            DemoError: with the server's words if it refuses.
        """
        path, body = f"/v1/federations/{federation}/enrolment-tokens", {"device": device, "auto_approve": True}
        return str(self._checked(self._http.post(path, json=body)).json()["token"])

    def device_key(self, federation: str | None = None) -> str:
        """Make a key that fetches models and nothing else, for devices of this federation or another that do not enrol.

        Raises:
            DemoError: with the server's words if it refuses.
        """
        body = {"name": "demo-devices", "scopes": ["device"], "federation": federation or self._federation}
        return str(self._checked(self._http.post("/v1/keys", json=body)).json()["key"])

    def snapshot(self) -> Snapshot:
        """Ask where the federation stands.

        Raises:
            DemoError: with the server's words if it refuses.
        """
        federation = self._get(self._path)
        latest = self._get(f"{self._path}/rounds/{federation['round']}") if federation["round"] else {}
        devices = self._get(f"{self._path}/devices")["items"]
        return Snapshot(
            elapsed_s=time.monotonic() - self._began,
            status=federation["status"],
            round=federation["round"],
            rounds=federation["plan"]["rounds"]["rounds"],
            phase=federation["round_phase"],
            received=latest.get("received", 0),
            invited=latest.get("invited", 0),
            devices=tuple(Device(d["name"], d["state"], d["examples"], d["detail"]) for d in devices),
        )

    def rounds(self) -> list[dict[str, Any]]:
        """Describe every round, oldest first."""
        listed = self._get(f"{self._path}/rounds")["items"]
        return [self._get(f"{self._path}/rounds/{one['number']}") for one in listed]

    def described(self, federation: str) -> dict[str, Any]:
        """Describe a federation as it is now."""
        return self._get(f"/v1/federations/{federation}")

    def listed(self, what: str, federation: str) -> list[dict[str, Any]]:
        """List a federation's updates or models."""
        items: list[dict[str, Any]] = self._get(f"/v1/federations/{federation}/{what}?limit=500")["items"]
        return items

    def blob(self, sha256: str) -> bytes:
        """Download a blob."""
        return self._checked(self._http.get(f"/v1/blobs/{sha256}")).content

    def _get(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._checked(self._http.get(path)).json()
        return answer

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        answer = response.json() if "json" in response.headers.get("content-type", "") else {}
        detail = answer.get("detail", response.text[:500])
        raise DemoError(f"{response.request.method} {response.request.url}: {response.status_code} {detail}")
