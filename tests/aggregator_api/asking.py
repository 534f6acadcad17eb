"""FastAPI's test client; newer releases of starlette warn that they would rather have httpx2."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient` is deprecated")
    from fastapi.testclient import TestClient

__all__ = ["TestClient"]
