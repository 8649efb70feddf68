"""The command line as a user has it: a program in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Demos find their cores free, whatever else runs beside the tests."""
    monkeypatch.setattr("slacktide.executors.core_probe.cpu_share", lambda cores: 1.0)


@pytest.fixture(scope="session")
def run() -> Run:
    """`run("models", "check", folder, cwd=…, env=…)`: the finished process."""

    def call(
        *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("SLACKTIDE_")}
        return subprocess.run(
            [sys.executable, "-P", "-m", "slacktide", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**ours, "COLUMNS": "100", "NO_COLOR": "1", **(env or {})},
            timeout=280,
        )

    return call


@pytest.fixture(scope="session")
def example_models(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """A repository with the example MLP, made by the program itself."""
    folder = tmp_path_factory.mktemp("cli") / "models"
    done = run("models", "make", folder, "--only", "mlp")
    assert done.returncode == 0, done.stderr
    return folder
