"""The phone's page as it is served: to anybody, from one folder per version, under a policy of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aggregator_api.core.settings import Settings
from aggregator_api.http.app import create_app
from aggregator_api.http.web import phone
from tests.aggregator_api.generated_devices import Wires
from tests.aggregator_api.http_client import TestClient

CSP = "content-security-policy"


def test_anybody_gets_the_page_and_every_file_that_it_names(server: TestClient) -> None:
    assert server.get("/phone", follow_redirects=False).headers["location"] == "/phone/"
    page = server.get("/phone/")
    assert page.status_code == 200
    assert "script-src 'self' 'wasm-unsafe-eval';" in page.headers[CSP]
    assert "unsafe-inline" not in page.headers[CSP]
    assert page.headers["cache-control"] == "no-cache"
    assert "__" not in page.text
    named = [f"/phone/{path}" for path in re.findall(r'(?:src|href)="\./([^"#]+)"', page.text)]
    assert len(named) >= 6
    for path in named:
        answer = server.get(path)
        assert answer.status_code == 200, path
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers[CSP] == page.headers[CSP]


def test_every_import_of_the_app_is_served(server: TestClient) -> None:
    """A module that is missing would be a page that never begins."""
    for name, path in phone.files().items():
        if path.suffix == ".js" and not name.startswith("vendor/"):
            folder = Path("/phone") / phone.version() / Path(name).parent
            for wanted in re.findall(
                r'(?m)^(?:import|export) [^"]*?from "([^"]+)"|^import "([^"]+)"', path.read_text()
            ):
                target = (folder / "".join(wanted)).as_posix()
                parts: list[str] = []
                for part in target.split("/"):
                    parts = parts[:-1] if part == ".." else [*parts, part]
                found = "/".join(parts)
                if "/vendor/" not in found:
                    assert server.get(found).status_code == 200, f"{name}: {found}"


def test_the_worker_knows_this_version_and_no_other_is_served(server: TestClient) -> None:
    worker = server.get("/phone/service_worker.js")
    assert worker.headers["content-type"].startswith("text/javascript")
    assert f'const VERSION = "{phone.version()}";' in worker.text
    assert '"recognizer/windows.js": "' in worker.text
    assert server.get("/phone/service_worker.js", headers={"if-none-match": worker.headers["etag"]}).status_code == 304
    assert server.get(f"/phone/{phone.version()}/main.js").status_code == 200
    assert server.get("/phone/000000000000/main.js").status_code == 404
    for name in ("../__init__.py", "%2e%2e/__init__.py", "types.py", "package.json"):
        assert server.get(f"/phone/{phone.version()}/{name}").status_code == 404, name


def test_files_are_compressed_for_who_takes_that(server: TestClient) -> None:
    path = f"/phone/{phone.version()}/main.js"
    packed = server.get(path, headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    plain = server.get(path, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert packed.text == plain.text == phone.files()["main.js"].read_text()


def test_without_its_vendored_files_the_page_says_so(server: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: path for name, path in phone.files().items() if not name.startswith("vendor/")}
    monkeypatch.setattr(phone, "files", lambda: files)
    phone.filled_page.cache_clear()
    assert 'data-runtime="no"' in server.get("/phone/").text
    phone.filled_page.cache_clear()


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, aggregation_process=False, phone_page=False)
    with TestClient(create_app(settings, Wires)) as client:
        for path in ("/phone", "/phone/", "/phone/service_worker.js", f"/phone/{phone.version()}/main.js"):
            answer = client.get(path, follow_redirects=False)
            assert answer.status_code == 404
            assert "phone_page" in answer.text
