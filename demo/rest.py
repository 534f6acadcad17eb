"""The operator's view of a server: its REST API."""

from __future__ import annotations

from typing import Any

import httpx

from processes import DemoError

CREATE_S = 300.0  # the server exports a network for phones while it creates their federation


class Operator:
    """A client of the REST API; every call raises a DemoError if the server refuses or doesn't answer."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def is_ready(self) -> bool:
        """Return whether the server answers, and has its broker."""
        try:
            return self._http.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def create(self, name: str, plan: dict[str, Any]) -> None:
        """Create a federation."""
        self._request("POST", "", {"name": name, "plan": plan})

    def enrolment_token(self, federation: str, device: str) -> str:
        """Make a token that lets one device in without further approval."""
        body = {"device": device, "auto_approve": True}
        return str(self._request("POST", f"/{federation}/enrolment-tokens", body)["token"])

    def describe(self, federation: str) -> dict[str, Any]:
        """Describe a federation as it is now."""
        return self._request("GET", f"/{federation}")

    def items(self, federation: str, kind: str) -> list[dict[str, Any]]:
        """List a federation's devices, updates or models."""
        return list(self._request("GET", f"/{federation}/{kind}?limit=500")["items"])

    def activities(self, federation: str) -> str:
        """Return what each device does, on one line."""
        rows = self.items(federation, "devices")
        return ", ".join(" ".join(filter(None, (row["name"], row["state"], row["detail"]))) for row in rows)

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = self._http.request(method, f"/v1/federations{path}", json=body)
        except httpx.HTTPError as error:
            raise DemoError(f"The server does not answer ({error}); its log says why") from error
        found: dict[str, Any] = response.json() if "json" in response.headers.get("content-type", "") else {}
        if not response.is_success:
            raise DemoError(
                f"{method} {response.url}: {response.status_code} {found.get('detail', response.text[:500])}"
            )
        return found
