"""The examples of extending.md and examples/extensions: short, complete, and used as the page says.

`make test-wheel` runs them on the compiled wheel too.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from slacktide import Server
from slacktide.cli.main import app
from slacktide.domain import Datatype, ModelInterface, TensorSpec
from slacktide.lab.examples import make_repository
from slacktide.lab.simulation.scenario import read_scenario, run_cell
from slacktide.testing import FakeExecutor

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
EXAMPLES = {
    block.splitlines()[0].removeprefix("# "): block
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
}
EXAMPLES |= {
    path.name: f"# {path.name}\n{path.read_text()}"
    for path in (ROOT / "examples" / "extensions").glob("*.py")
}
POINTS = {
    "schedulers": ("newest_first.py", "NewestFirst"),
    "scaling_policies": ("by_rate.py", "ByRate"),
    "placements": ("on_servers.py", "OnServers"),
    "arrivals": ("pulses.py", "Pulses"),
    "publications": ("waiting.py", "PAPER"),
    "verbs": ("report_size.py", "report_size"),
}
FUNCTIONS = ("straighten.py", "split_pages.py")
OBJECTS = ("doubling.py", "logged_cores.py", "outcome_counts.py")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the process, which has every example as a module."""
    for name, text in EXAMPLES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in EXAMPLES:
        sys.modules.pop(name.removesuffix(".py"), None)


def load(name: str) -> ModuleType:
    return importlib.import_module(name.removesuffix(".py"))


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.stdout


def register(install: Any) -> None:
    """As if one distribution had all of them."""
    for point, (name, target) in POINTS.items():
        module = name.removesuffix(".py")
        short = module.replace("_", "-") if point == "verbs" else module
        install(f"shop-{point}", "1.0", point, **{short: f"{module}:{target}"})


def test_every_extension_point_has_an_example_of_at_most_forty_lines() -> None:
    named = {name for name, _ in POINTS.values()}
    for name in EXAMPLES:
        assert f"# {name}\n" in PAGE or f"(../examples/extensions/{name})" in PAGE
    assert set(EXAMPLES) == {*named, *OBJECTS, "program.py", *FUNCTIONS}
    # The first line is the name of the file.
    long = {name: len(text.splitlines()) - 1 for name, text in EXAMPLES.items()}
    assert {name: lines for name, lines in long.items() if lines > 40} == {}


@pytest.mark.parametrize("path", ["", "examples/policies/deadline_first.py"])
def test_examples_import_what_packages_offer(path: str) -> None:
    texts = [(ROOT / path).read_text()] if path else EXAMPLES.values()
    imports = [node for text in texts for node in ast.walk(ast.parse(text))]
    modules = {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    ours = {name for name in modules if name and name.partition(".")[0].startswith("slacktide")}
    assert len(ours) >= 3
    assert [name for name in ours if not hasattr(importlib.import_module(name), "__path__")] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_passes_its_own_tests(name: str) -> None:
    if name == "program.py":
        return  # it runs in a test of its own
    tests = [value for key, value in vars(load(name)).items() if key.startswith("test_")]
    for test in tests:
        test()
    assert tests or name in ("waiting.py", "report_size.py", *FUNCTIONS, *OBJECTS)


@pytest.mark.parametrize(
    ("scenario", "settings"),
    [
        ("bursty-classifier", ["grid={}", "scheduler={name: %s, rows: 2}", "duration=2s"]),
        (
            "bursty-classifier",
            ["grid={}", "applications.cameras.arrivals=%s:5:500ms", "duration=2s"],
        ),
        ("scaling", ["grid={}", "models.detector.scaling={name: %s, load: 0.5}", "duration=5s"]),
        ("pipelines", ["placement.policy={name: %s, batch: 4}", "duration=5s", "warmup=1s"]),
    ],
)
@pytest.mark.parametrize("by_place", [False, True])
def test_a_scenario_runs_with_a_policy_by_name_or_place(
    install: Any, scenario: str, settings: list[str], by_place: bool
) -> None:
    register(install)
    point = {"scheduler": "schedulers", "scaling": "scaling_policies", "policy": "placements"}
    key = next((key for key in point if any(f"{key}={{" in text for text in settings)), "")
    name, target = POINTS[point.get(key, "arrivals")]
    short = name.removesuffix(".py")
    named = f"{short}:{target}" if by_place else short
    quoted = f'"{named}"' if "{name" in " ".join(settings) else named
    stated = [text.replace("%s", quoted) for text in settings]
    path = ROOT / "examples" / "scenarios" / f"{scenario}.yaml"
    (cell,) = read_scenario(path, stated, imports=by_place)
    report = run_cell(cell, 1)
    assert report.total.submitted > 0
    assert report.total.goodput > 0.0


@pytest.mark.parametrize("name", ["waiting", "waiting:PAPER"])
def test_the_publication_runs_from_the_command_line(install: Any, name: str, folder: Path) -> None:
    register(install)
    words = ("reproduce", name, "--quick", "--check", "--json", "-")
    document = json.loads(run(*words, "--jobs", "1", "--state", str(folder / "state.jsonl")))
    assert document["rows"] == [{"experiment": "table-1", "setting": "burst", "batches": 3}]


@pytest.mark.parametrize("name", ["report-size", "report_size:report_size"])
def test_the_verb_is_one_of_the_program(install: Any, name: str, folder: Path) -> None:
    register(install)
    (folder / "m.onnx").write_bytes(bytes(12))
    assert run(name, str(folder)) == "12 bytes\n"
    if ":" not in name:
        assert "From shop-verbs 1.0." in run("--help")
        assert "report_size" not in sys.modules or load("report_size")


def test_the_program_prints_what_the_page_says(folder: Path) -> None:
    (folder / "models/m/1").mkdir(parents=True)
    (folder / "models/m/1/model.onnx").write_bytes(b"opened by nobody")
    expected = re.findall(r"prints\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    written = io.StringIO()
    with redirect_stdout(written):
        runpy.run_path(str(folder / "program.py"), run_name="__main__")
    assert [written.getvalue()] == expected


def test_the_allocator_gives_workers_their_cores(folder: Path) -> None:
    make_repository(folder / "models", models=["mlp"])
    (folder / "models/mlp/slacktide.yaml").write_text("cores: 1\n")
    cores = load("logged_cores.py").LoggedCores()
    with Server(folder / "models", cpu_allocator=cores, profile_budget_s=0.1):
        assert [grant.amount for grant in cores.granted.values()] == [1.0]
    assert cores.granted == {}


def test_a_server_takes_a_scheduler_by_place(folder: Path) -> None:
    (folder / "models/m/1").mkdir(parents=True)
    (folder / "models/m/1/model.onnx").write_bytes(b"opened by nobody")
    rows = TensorSpec("x", Datatype.FP32, (-1, 2))
    executor = FakeExecutor(ModelInterface((rows,), (rows,), 4))
    options = {"scheduler": "newest_first:NewestFirst", "scheduler_options": {"rows": 1}}
    with Server(folder / "models", executors={"worker": executor}, **options) as server:
        assert server.app.control.ready()
