"""Provenance of a report: time, versions, machine, commit. Runs git; blocks briefly."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from slacktide.executors import allowed_processors
from slacktide.lab.load.report.document import Provenance


def gather(packages: Sequence[str] = ("numpy",)) -> Provenance:
    """Return the provenance of a run that starts now and uses `packages`."""
    versions = {"python": platform.python_version()}
    for package in ("slacktide", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    cores = len(allowed_processors())
    return Provenance(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions,
        machine=f"{platform.system()} {platform.machine()}, {cores} cores",
        commit=commit_of(Path(__file__)),
    )


def commit_of(source: Path) -> str | None:
    """Return the commit of the git checkout that tracks `source`; None if no checkout does. A
    package installed inside another checkout (in a virtual environment) is not tracked there, so
    that checkout's commit is not returned."""
    tracked = _git(source.parent, "ls-files", "--error-unmatch", source.name)
    commit = _git(source.parent, "rev-parse", "--short=12", "HEAD")
    if tracked is None or commit is None:
        return None
    changes = _git(source.parent, "status", "--porcelain", "--untracked-files=no")
    return commit.strip() + ("+" if changes else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git; None if git is missing, times out or fails."""
    try:
        process = subprocess.run(
            ("git", "-C", str(folder), *arguments),
            capture_output=True,
            text=True,
            timeout=5.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout
