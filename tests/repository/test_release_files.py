"""What is published of a version: the same bytes twice, nothing missing, a phone's runtime only by its wheel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy.distribution import BUILD, NPM_SHARED, DistributionError, absolute_links, build
from tests.repository.imports import PACKAGES, REPOSITORY, tracked

RUNTIME = "vendor/ort/ort-wasm-simd-threaded.wasm"
LOOK = "from aggregator_api.http.web.phone import APP, files; print(APP); print(*files())"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This commit without what git does not hold."""
    folder = tmp_path_factory.mktemp("clone") / "gaitway"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(REPOSITORY), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def ort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands for ONNX Runtime for the web."""
    folder = tmp_path_factory.mktemp("ort")
    (folder / "LICENSE").write_text("MIT")
    (folder / "ort.wasm.min.mjs").write_text("export {};")
    (folder / Path(RUNTIME).name).write_bytes(b"\0asm")
    return folder


@pytest.fixture(scope="module")
def made(clone: Path, ort: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = build(tmp_path_factory.mktemp("first"), ort, repository=clone)
    return {path.name.split("-")[0] + path.suffix: path for path in found}


@pytest.mark.ci
def test_a_second_build_has_the_same_bytes(made: dict[str, Path], clone: Path, ort: Path, tmp_path: Path) -> None:
    again = {path.name: path.read_bytes() for path in build(tmp_path, ort, repository=clone)}
    assert again == {path.name: path.read_bytes() for path in made.values()}


@pytest.mark.ci
def test_the_wheel_holds_every_tracked_file_of_its_packages(made: dict[str, Path]) -> None:
    with zipfile.ZipFile(made["gaitway.whl"]) as wheel:
        names = set(wheel.namelist())
    assert {file.relative_to(REPOSITORY).as_posix() for file in tracked(*PACKAGES)} - names == set()
    assert not any("vendor" in name for name in names)


@pytest.mark.ci
def test_the_npm_package_holds_the_phones_modules_and_needs_nothing_but_onnx_runtime(made: dict[str, Path]) -> None:
    with tarfile.open(made["gaitway.tgz"]) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
        file = archive.extractfile("package/package.json")
        assert file is not None
        about = json.load(file)
    modules = {file.relative_to(REPOSITORY / "phone").as_posix() for file in tracked("phone/app/*.js")}
    for served, folder in NPM_SHARED.items():
        modules |= {f"app/{served}/{file.name}" for file in tracked(f"{folder}/*.js")}
    assert modules == names - {"package.json", "LICENSE"}
    assert set(about["dependencies"]) == {"onnxruntime-web"}


def test_readmes_links_lead_to_the_repository() -> None:
    text = absolute_links((REPOSITORY / "README.md").read_text(), "https://host/files/", "https://host/raw/")
    targets = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []


@pytest.mark.ci
def test_the_source_archive_builds_the_same_wheel(made: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(made["gaitway.gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    tree = next(tmp_path.iterdir())
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(int((tree / "PKG-INFO").stat().st_mtime))}
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", BUILD, "build_wheel", str(tmp_path / "out")]
    subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=True)
    assert next((tmp_path / "out").iterdir()).read_bytes() == made["gaitway.whl"].read_bytes()


@pytest.mark.ci
@pytest.mark.parametrize("has_phone", [False, True])
def test_the_server_serves_phones_their_runtime_where_its_wheel_is(
    has_phone: bool, made: dict[str, Path], tmp_path: Path
) -> None:
    for name in ["gaitway.whl"] + ["gaitway_phone.whl"] * has_phone:
        zipfile.ZipFile(made[name]).extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    app, _, files = done.stdout.partition("\n")
    assert app.startswith(str(tmp_path))
    assert (RUNTIME in files.split()) == has_phone


def test_what_no_commit_holds_is_not_published(tmp_path: Path) -> None:
    for words in (["init", "-q"], ["config", "user.email", "a@b"], ["config", "user.name", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "forgotten.py").touch()
    with pytest.raises(DistributionError, match=r"1 file\(s\) differ from the commit.*forgotten\.py"):
        build(tmp_path / "dist", tmp_path / "none", repository=tmp_path)
