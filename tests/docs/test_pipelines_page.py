"""The example of docs/pipelines.md runs, and what it prints is so."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

import slacktide
from slacktide.lab.examples import make_repository, pipeline_frames
from slacktide.lab.examples.street import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


@pytest.mark.slow
def test_the_example_finds_vehicles_their_brands_and_plates(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    make_repository(tmp_path / "models", models=["traffic"])
    users = next(pipeline_frames(1)).road_users
    true = {f"{KINDS[user.kind]} {user.brand} {user.plate}" for user in users}
    written = io.StringIO()
    with slacktide.Server(tmp_path / "models", profile_budget_s=0.2) as server:
        example = example.replace("localhost:8000", f"127.0.0.1:{server.http_port}")
        example = example.replace("500_000", "2_000_000")  # machines that run tests are slow
        with contextlib.redirect_stdout(written):
            exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    lines = written.getvalue().splitlines()
    assert len(lines) >= 3
    assert sum(line in true for line in lines) >= 0.7 * len(lines), (lines, true)
