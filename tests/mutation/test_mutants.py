"""The faults that `make mutants` puts into the core."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
SOURCE = '''
"""Docstring 1."""
import logging
log = logging.getLogger("x")


class Gate:
    """Says 2."""

    def open(self, x: int = 3) -> int | None:
        log.info("asked %d", 4)
        if x < 5:
            raise ValueError("6")
        self.count += 7
        return max(x, 8)
'''


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", HERE / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while the class is made.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mutants", module)
        spec.loader.exec_module(module)
    return module


def test_faults_are_about_behaviour_and_have_names_without_lines(mutants: ModuleType) -> None:
    drawn = mutants.mutants_of("gate.py", SOURCE)
    assert {mutant.name for mutant in drawn} == {
        "gate.py Gate.open: 3 -> 4",
        "gate.py Gate.open: x < 5 -> x <= 5",
        "gate.py Gate.open: 5 -> 6",
        "gate.py Gate.open: if x < 5: raise ValueError('6') -> if True: raise ValueError('6')",
        "gate.py Gate.open: if x < 5: raise ValueError('6') -> if False: raise ValueError('6')",
        "gate.py Gate.open: self.count += 7 -> pass",
        "gate.py Gate.open: 7 -> 8",
        "gate.py Gate.open: return max(x, 8) -> return None",
        "gate.py Gate.open: max(x, 8) -> min(x, 8)",
        "gate.py Gate.open: 8 -> 9",
    }


def test_each_fault_is_alone_in_a_module_that_compiles(mutants: ModuleType) -> None:
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutants.mutants_of("gate.py", SOURCE):
        compile(mutant.source, "gate.py", "exec")
        changed = mutant.source.splitlines()
        differing = [
            i for i, pair in enumerate(zip(plain, changed, strict=True)) if len({*pair}) > 1
        ]
        assert len(differing) == 1, mutant.name


def test_every_area_has_modules_and_tests(mutants: ModuleType, monkeypatch) -> None:
    """What is moved is moved here, too: a pattern without a file would change nothing, in vain."""
    monkeypatch.setitem(sys.modules, "mutants", mutants)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("mutation_main", HERE / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    main = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutation_main", main)
    spec.loader.exec_module(main)
    for area in main.AREAS:
        assert [module for module in area.modules if not list(main.SOURCE.glob(module))] == []
        folders = [
            argument for stage in area.tests for argument in stage if argument.startswith("tests/")
        ]
        assert [path for path in folders if not (main.ROOT / path).is_dir()] == []
    assert [path for path in main.NOT_CHANGED if not (main.SOURCE / path).exists()] == []
    listed = {name.partition(" ")[0] for name in main._equivalent()}
    assert [path for path in listed if not (main.SOURCE / path).exists()] == []
