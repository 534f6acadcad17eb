"""Make what is published of a version from what git holds: archive, wheels, npm package; always the same bytes.

    python deploy/distribution.py [--out dist] [--phone phone/app/vendor/ort] [--url https://…/gaitway]

It needs Python with setuptools, and nothing of the development environment. The wheel has no ONNX Runtime for browsers
(14 MB, which only a server with phones serves): that is a second wheel, made if its files are there (`make phone`).
Times in the archives are the commit's, owners are nobody. `--url` is where the repository is: the package's links lead
there, and so do those of README, which an index shows without the files beside it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ORT = REPOSITORY / "phone" / "app" / "vendor" / "ort"
PHONE = Path("deploy") / "phone_wheel"
NPM_SHARED = {"recognizer": "export/web", "views": "gaitway/views"}
"""What servers serve below `app/` from elsewhere, and the phone's modules import."""
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


class DistributionError(Exception):
    """What is to be published cannot be made; the message says why and what to do."""


def build(out: Path, ort: Path, *, url: str = "", repository: Path = REPOSITORY) -> list[Path]:
    """Make the files in a folder, and SHA256SUMS of them; returns them.

    Raises:
        DistributionError: the checkout has changes that no commit holds, versions differ, or a build fails.
    """
    if changed := _git(repository, "status", "--porcelain").splitlines():
        raise DistributionError(
            f"{len(changed)} file(s) differ from the commit, such as {changed[0]!r}: commit them first"
        )
    epoch = int(_git(repository, "log", "-1", "--format=%ct"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _export(repository, tree)
        if len(found := {_version(tree), _version(tree / PHONE)}) > 1:
            raise DistributionError(f"pyproject.toml and {PHONE}/pyproject.toml have versions {sorted(found)}")
        if url:
            _link(tree, url.rstrip("/"))
        made = [
            _npm_package(tree, out, epoch),
            _repacked(_built("build_sdist", tree, epoch), out, epoch),
            _moved(_built("build_wheel", tree, epoch), out),
        ]
        if ort.is_dir():
            shutil.copytree(ort, tree / PHONE / "gaitway_phone" / "ort")
            made.append(_moved(_built("build_wheel", tree / PHONE, epoch), out))
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    (out / "SHA256SUMS").write_text(sums)
    return made


def _git(repository: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=True).stdout


def _export(repository: Path, tree: Path) -> None:
    archive = subprocess.run(
        ["git", "-c", "tar.umask=022", "archive", "HEAD"], cwd=repository, capture_output=True, check=True
    ).stdout
    tree.mkdir()
    subprocess.run(["tar", "-xp", "-C", str(tree)], input=archive, check=True)


def _link(tree: Path, url: str) -> None:
    """Say where the repository is, and let README's links and images lead there."""
    version = _version(tree)
    links = {"Homepage": url, "Documentation": f"{url}/blob/v{version}/docs/tutorial.md"}
    links |= {"Changelog": f"{url}/blob/v{version}/CHANGELOG.md", "Issues": f"{url}/issues"}
    project, readme = tree / "pyproject.toml", tree / "README.md"
    lines = "".join(f"{name} = {json.dumps(link)}\n" for name, link in links.items())
    project.write_text(project.read_text() + f"\n[project.urls]\n{lines}")
    readme.write_text(absolute_links(readme.read_text(), f"{url}/blob/v{version}/", f"{url}/raw/v{version}/"))


def absolute_links(text: str, files: str, images: str) -> str:
    """Return Markdown whose relative links and images lead to these addresses."""
    text = re.sub(r'(<img src=")(?!https?:)', rf"\1{images}", text)
    return re.sub(r"(\]\()(?!https?:|mailto:|#)", rf"\1{files}", text)


def _npm_package(tree: Path, out: Path, epoch: int) -> Path:
    """Pack the phone's modules, as `npm pack` would: they also run in Node, and use ONNX Runtime as a dependency."""
    described = json.loads((tree / "phone" / "package.json").read_text())
    about = {key: described[key] for key in ("name", "type", "description", "license", "dependencies")}
    about |= {"version": _version(tree), "exports": {"./*": "./app/*"}}
    files = {path.relative_to(tree / "phone").as_posix(): path for path in (tree / "phone" / "app").rglob("*.js*")}
    for served, folder in NPM_SHARED.items():
        files |= {f"app/{served}/{path.name}": path for path in (tree / folder).glob("*.js")}
    files["LICENSE"] = tree / "LICENSE"
    contents = {name: path.read_bytes() for name, path in files.items()}
    contents["package.json"] = (json.dumps(about, indent=2) + "\n").encode()
    target = out / f"{about['name']}-{about['version']}.tgz"
    with _new_archive(target, epoch) as archive:
        for name in sorted(contents):
            member = tarfile.TarInfo(f"package/{name}")
            member.size, member.mtime = len(contents[name]), epoch
            archive.addfile(member, io.BytesIO(contents[name]))
    return target


@contextmanager
def _new_archive(target: Path, epoch: int) -> Iterator[tarfile.TarFile]:
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        yield archive


def _version(project: Path) -> str:
    return str(tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"])


def _built(what: str, tree: Path, epoch: int) -> Path:
    out = tree / "dist" / what
    out.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(out)],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DistributionError(f"{what} failed: {done.stderr.strip()[-2000:]}")
    return next(path for path in out.iterdir() if path.is_file())


def _moved(path: Path, out: Path) -> Path:
    return Path(shutil.copy(path, out / path.name))


def _repacked(sdist: Path, out: Path, epoch: int) -> Path:
    """Write a source archive again without what differs from one build to the next: times, owners, order."""
    target = out / sdist.name
    with tarfile.open(sdist) as source, _new_archive(target, epoch) as copy:
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            copy.addfile(member, source.extractfile(member) if member.isfile() else None)
    return target


def main() -> int:
    """Make the files, and say where they are; 0 if they could be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder for the files")
    parser.add_argument("--phone", type=Path, default=ORT, help="folder of ONNX Runtime for the web")
    parser.add_argument("--url", default="", help="where the repository is; without it no link leads there")
    words = parser.parse_args()
    try:
        made = build(words.out, words.phone, url=words.url)
    except DistributionError as error:
        print(f"Nothing to publish was made. {error}", file=sys.stderr)
        return 1
    for path in made:
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    if not words.phone.is_dir():
        print(f"no wheel for phones: {words.phone} is not there; make phone fills it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
