"""The page on simulation: its scenario is one, its example runs."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from slacktide.lab.simulation.scenario import build
from slacktide.lab.simulation.scenario.reading import parse_scenario

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


def block(language: str) -> str:
    """The one code block of a language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (only,) = blocks
    return str(only)


def test_the_scenario_of_the_page_is_one(tmp_path: Path) -> None:
    cells = parse_scenario(block("yaml"), "page.yaml", tmp_path)
    assert len(cells) == 6
    for cell in cells:
        build(cell)


def test_the_example_from_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = block("yaml").replace("seeds: [1, 2, 3]", "seeds: 0").replace("5s ", "0s ")
    (tmp_path / "scenario.yaml").write_text(quick)
    example = block("python").replace("duration=10s", "duration=1s")
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    assert len(written.getvalue().splitlines()) == 6
