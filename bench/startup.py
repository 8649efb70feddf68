"""Start to ready, time of `import slacktide`, size of the core install.

The server starts pinned to one core, with the example models and their profiles stored; `ready` is
a 200 from /v2/health/ready. The install goes into a fresh environment without extras: its size is
that of site-packages, less pip and setuptools, which came with the environment.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from statistics import median

from bench import servers
from bench.machine import ROOT, cores, pinned
from bench.measurement import Figure, Options, Result, at_most
from bench.models import example_repository

_IMPORT = (
    "import time; begin = time.perf_counter(); import slacktide; print(time.perf_counter() - begin)"
)
_NOT_OURS = ("pip", "setuptools", "_distutils_hack", "pkg_resources")
MIB = 1e6
"""Megabytes, as package indexes count them."""


def run(options: Options) -> Result:
    """Five starts and imports (three when quick), one install."""
    result = Result("startup")
    rounds = 3 if options.quick else 5
    if options.wants("start"):
        repository = example_repository()
        with servers.slacktide(repository):
            pass  # measures the profiles that are not stored yet
        starts = []
        for _ in range(rounds):
            with servers.slacktide(repository) as serving:
                starts.append(serving.seconds_to_ready)
        result.figures.append(
            Figure("start to ready", median(starts), "s", at_most(5.0), samples=tuple(starts))
        )
    if options.wants("import"):
        imports = [_import_seconds() for _ in range(rounds)]
        result.figures.append(
            Figure("import slacktide", median(imports), "s", at_most(0.5), samples=tuple(imports))
        )
    if options.wants("install"):
        try:
            seconds, size = _install()
        except subprocess.CalledProcessError as error:
            result.remarks.append(f"core install failed: {error.stderr.strip().splitlines()[-1]}")
        else:
            result.figures.append(Figure("core install", size, "MB", at_most(350.0)))
            result.figures.append(Figure("core install, time", seconds, "s"))
    return result


def _import_seconds() -> float:
    command = pinned(cores().server, [sys.executable, "-c", _IMPORT])
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _install() -> tuple[float, float]:
    """(seconds, megabytes) of `pip install .` in a fresh environment."""
    with tempfile.TemporaryDirectory(prefix="slacktide-install-") as folder:
        venv.create(folder, with_pip=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        begin = time.perf_counter()
        command = [*pip, "install", "--constraint", "constraints.txt", "."]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - begin
        (packages,) = Path(folder).glob("lib/python*/site-packages")
        return seconds, _size(packages) / MIB


def _size(packages: Path) -> int:
    """Bytes on the disk of everything but what the environment came with."""
    return sum(
        file.stat().st_blocks * 512
        for entry in packages.iterdir()
        if not entry.name.startswith(_NOT_OURS)
        for file in (entry.rglob("*") if entry.is_dir() else (entry,))
        if not file.is_symlink()
    )
