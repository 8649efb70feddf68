"""The sources and the compiled package give every command alike, to the bit.

The running build is compared with the sources, and both with what `make test-compiled` has built
last, if that is of these sources. Where nothing is compiled, it is the sources twice, with other
hash seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import slacktide
from slacktide._version import BUILD

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
COMPILED = ROOT / ".cache/compiled/package"
RUNNING = Path(slacktide.__file__).parents[1]


def of_these_sources(package: Path) -> bool:
    """Whether `package` is there, and compiled from the sources as they are now."""
    names = [path.relative_to(SOURCES) for path in SOURCES.glob("slacktide/**/*.py")]
    return all(
        (package / name).is_file()
        and (package / name).read_bytes() == (SOURCES / name).read_bytes()
        for name in names
        if name.name != "_version.py"
    )


def played(package: Path, seed: int) -> dict[str, Any]:
    """What plays.py says of the build in `package`."""
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, str(Path(__file__).with_name("plays.py"))]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    document: dict[str, Any] = json.loads(printed)
    assert document["package"] == str(package)
    return document


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_of_scenarios_and_recordings_is_the_same() -> None:
    running, sources = played(RUNNING, 1), played(SOURCES, 2)
    assert (running["build"], sources["build"]) == (BUILD, "interpreted")
    assert len(sources["digests"]) > 40
    assert all(commands > 0 for commands, _ in sources["digests"].values())
    assert running["digests"] == sources["digests"]
    if RUNNING == SOURCES and of_these_sources(COMPILED):
        compiled = played(COMPILED, 3)
        assert compiled["build"] == "compiled"
        assert compiled["digests"] == sources["digests"]
