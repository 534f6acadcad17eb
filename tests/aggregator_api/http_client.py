"""FastAPI's test client; newer releases of starlette warn that they would rather have httpx2."""

import warnings
from typing import Any, Self

from fastapi import FastAPI
from httpx import Response

from aggregator_api.auth.api_keys import OPERATOR_FILE
from aggregator_api.runtime import Runtime

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient` is deprecated")
    from fastapi.testclient import TestClient as StarletteClient

__all__ = ["OperatorClient", "TestClient", "problem"]


class TestClient(StarletteClient):
    """Asks from this machine, or from `host`; with the key, if one is given."""

    __test__ = False

    def __init__(self, app: FastAPI, *, host: str = "127.0.0.1", key: str | None = None, **options: Any) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else None
        super().__init__(app, base_url=f"http://{host}", client=(host, 50_000), headers=headers, **options)
        self.served = app

    @property
    def runtime(self) -> Runtime:
        """The server's parts, while it runs."""
        found: Runtime = self.served.state.runtime
        return found


class OperatorClient(TestClient):
    """Asks with the operator's first key, which a server writes into its folder when it starts."""

    def __enter__(self) -> Self:
        """Start the server, unless it runs."""
        super().__enter__()
        self.show_key()
        return self

    def show_key(self) -> Self:
        """Read the key of a server that runs."""
        path = self.runtime.settings.data_dir / OPERATOR_FILE
        self.headers["Authorization"] = f"Bearer {path.read_text().strip()}"
        return self


def problem(response: Response, status_code: int) -> dict[str, Any]:
    """Return the problem that a response must be."""
    assert response.status_code == status_code, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert found["status"] == status_code
    assert found["title"]
    assert found["detail"]
    return found
