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
    """The provenance of a run that starts now and uses `packages`."""
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
    """The commit of the git checkout that tracks `source`; None if none does. A package installed
    inside another checkout (a virtual environment) is not tracked there, so it does not pass for
    that checkout's code."""
    tracked = _git(source.parent, "ls-files", "--error-unmatch", source.name)
    commit = _git(source.parent, "rev-parse", "--short=12", "HEAD")
    if tracked is None or commit is None:
        return None
    changes = _git(source.parent, "status", "--porcelain", "--untracked-files=no")
    return commit.strip() + ("+" if changes else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of git; None if it is missing, slow or unhappy."""
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *arguments),
            capture_output=True,
            text=True,
            timeout=5.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
