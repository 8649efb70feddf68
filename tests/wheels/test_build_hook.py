"""What the build hook spells out in the copy that is compiled does what the source does."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

HOOK = Path(__file__).parents[2] / "hatch_build.py"
READ_SERVER = "from slacktide import Server"
SOURCE = '''"""A module."""

from __future__ import annotations

from dataclasses import dataclass, field

from slacktide.domain.read_only import read_only


@read_only
class Timed:
    rows: int
    seconds: float = 1.0
    data: memoryview | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError("rows")

    @property
    def where(self) -> str:
        return "é·" * self.rows


@dataclass(slots=True, eq=False, repr=False)
class Visit:
    when: float
    words: list[str] = field(default_factory=list)
    left: bool = field(
        init=False, default=False
    )


@read_only
class Named:
    name: str = ""


@read_only
class Numbered(Named):
    id: int = 0


def total(parts: list[float]) -> float:
    return sum("é" and part for part in parts)


def total_from(parts: list[float]) -> float:
    return sum((part for part in parts), 0.0) + sum((part for part in parts), start=0.0)
'''


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    return loaded("hatch_build", HOOK)


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made(hook: ModuleType, tmp_path: Path) -> ModuleType:
    path = tmp_path / "spelled.py"
    path.write_text(hook.spelled_out(SOURCE))
    return loaded("spelled", path)


def test_a_constructor_is_written_and_behaves_as_the_generated_one(made: ModuleType) -> None:
    timed = made.Timed(2)
    assert timed == made.Timed(2, 1.0, None)
    assert hash(timed) == hash(made.Timed(2))
    assert replace(timed, rows=3).rows == 3
    assert [field.name for field in fields(timed)] == ["rows", "seconds", "data"]
    assert made.Timed.__init__.__code__.co_filename == made.__file__
    with pytest.raises(ValueError, match="rows"):
        made.Timed(0)


def test_a_class_without_a_generated_method_is_written_as_a_plain_one(made: ModuleType) -> None:
    plain, other = made.Visit(1.0), made.Visit(2.0, ["a"])
    assert (plain.when, plain.words, plain.left, other.words) == (1.0, [], False, ["a"])
    assert plain.words is not made.Visit(1.0).words
    assert not is_dataclass(made.Visit)


def test_a_constructor_takes_what_a_base_in_the_same_module_states(made: ModuleType) -> None:
    two = made.Numbered("two", 2)
    assert (two, two.name, two.id) == (made.Numbered("two", id=2), "two", 2)
    assert made.Numbered.__init__.__code__.co_filename == made.__file__


def test_annotations_are_kept(made: ModuleType) -> None:
    assert get_type_hints(made.Timed)["data"] == memoryview | None


def test_sums_are_over_lists_and_lines_keep_their_numbers(hook: ModuleType) -> None:
    written = hook.spelled_out(SOURCE).splitlines()
    sums = [line.removeprefix("    return ") for line in written if "sum(" in line]
    given = "[part for part in parts]"
    assert sums == [
        'sum(["é" and part for part in parts])',
        f"sum(({given}), 0.0) + sum(({given}), start=0.0)",
    ]
    for number, line in enumerate(SOURCE.splitlines()):
        if line.startswith(("class", "    def", "def")):
            assert written[number] == line


@pytest.mark.parametrize(
    "start",
    [("-m", "slacktide", "--version"), ("-c", "import slacktide.engine"), ("-c", READ_SERVER)],
)
def test_a_missing_compiled_module_is_an_error_at_every_start(
    start: tuple[str, str], tmp_path: Path
) -> None:
    package = tmp_path / "slacktide"
    package.mkdir()
    for part in HOOK.with_name("src").glob("slacktide/*"):
        if part.name != "_version.py":
            (package / part.name).symlink_to(part)
    stated = (HOOK.parent / "src/slacktide/_version.py").read_text()
    lost = stated.replace("...] = ()", '...] = ("slacktide/engine/gone.so",)')
    assert lost != stated
    (package / "_version.py").write_text(lost)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, *start], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    last_line = ended.stderr.splitlines()[-1]
    assert last_line.startswith(
        "ImportError: slacktide/engine/gone.so is missing from this compiled"
    )


def test_folders_are_compiled_whole_with_few_exceptions():
    """Files that are left out, or compiled alone, have their reason beside them."""
    text = (HOOK.parent / "pyproject.toml").read_text()
    config = tomllib.loads(text)["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    entries = [entry for group in config["groups"].values() for entry in group]
    alone = [entry for entry in entries if entry.endswith(".py")]
    exceptions = [*config["interpreted"], *alone]
    assert len(exceptions) <= 10
    for entry in exceptions:
        assert (HOOK.parent / "src" / entry).exists()
        assert re.search(rf'^    "{re.escape(entry)}",  # \w', text, re.MULTILINE), entry
    for entry in config["interpreted"]:
        assert any(entry.startswith(f"{folder}/") for folder in entries), f"{entry} is in no folder"
