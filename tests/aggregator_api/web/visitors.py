"""A browser without a screen: it keeps its cookie, follows redirects when told to, and fills in forms."""

from __future__ import annotations

import re
from collections.abc import Sequence

from httpx import Response

from aggregator_api.auth import api_keys
from aggregator_api.auth.api_keys import Scope
from aggregator_api.federations.service import get_federation
from tests.aggregator_api.http_client import TestClient

HTML = {"accept": "text/html,application/xhtml+xml"}
FROM_HERE = {"sec-fetch-site": "same-origin"}


def key_of(server: TestClient, scopes: Sequence[Scope], federation: str | None = None) -> str:
    """Make a key."""
    with server.runtime.database.write() as session:
        row = get_federation(session, federation) if federation else None
        return api_keys.make(session, "visitor", scopes, federation=row)[1]


class Visitor:
    """One browser, with its own cookie."""

    def __init__(self, server: TestClient) -> None:
        self.server = server
        self.cookie = ""

    @classmethod
    def logged_in(cls, server: TestClient, key: str) -> Visitor:
        """Log in with a key."""
        visitor = cls(server)
        answer = visitor.log_in(key)
        assert answer.status_code == 303, answer.text
        return visitor

    def log_in(self, key: str, **fields: str) -> Response:
        """Send the login's form, and keep the cookie that comes."""
        answer = self.post("/login", {"key": key, **fields})
        if cookie := answer.headers.get("set-cookie"):
            self.cookie = cookie.partition(";")[0]
        self.server.cookies.clear()  # this visitor sends its own
        return answer

    def get(self, path: str, **headers: str) -> Response:
        """Ask for a page, without following redirects."""
        return self.server.get(path, headers={**HTML, **self._cookies(), **headers}, follow_redirects=False)

    def post(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> Response:
        """Send a form as a page of this server does, but with these fields alone."""
        sent = {**HTML, **FROM_HERE, **self._cookies(), **headers}
        return self.server.post(path, data=fields or {"": ""}, headers=sent, follow_redirects=False)

    def submit(self, path: str, fields: dict[str, str] | None = None, *, on: str = "/federations/walks") -> Response:
        """Send a form with the token that the page `on` holds."""
        return self.post(path, {"csrf": self.token(on), **(fields or {})})

    def token(self, page: str = "/federations/walks") -> str:
        """Return the token in a page's forms."""
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', self.get(page).text)
        assert found is not None
        return found[1]

    def _cookies(self) -> dict[str, str]:
        return {"cookie": self.cookie} if self.cookie else {}
