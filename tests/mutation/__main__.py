"""`make mutants`: put faults into the core, one at a time, and see that the tests notice.

Draws a sample of all faults (`--seed`, `--count`), runs the tests of the fault's area in a process
forked for it, and those of the areas above where the area's own say nothing. After `--minutes` none
is begun any more. Prints each fault that lives, and the share that fell by area; equivalent faults
stand in equivalent.txt with a reason and are not drawn. Exit code 1 if fewer than 90 % fell.

Every stage first runs without any fault. How long that takes on this machine, now, is the measure:
a fault falls as well if its tests need several times the processor time (a loop without an end), or
one of them waits in vain for several times as long as the longest did. If they take far longer by
the clock alone, nothing is said: the fault is reported as not judged, and counts nowhere.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.util
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import hypothesis  # loaded once, before forking
import numpy  # noqa: F401
import pydantic  # noqa: F401
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from mutants import Mutant, mutants_of  # noqa: E402  (a folder of its own, no package)

SOURCE = ROOT / "src" / "slacktide"
WANTED = 0.9


@dataclass(frozen=True, slots=True)
class Area:
    """What is changed together, and which tests must notice, in this order."""

    name: str
    modules: tuple[str, ...]
    """Globs from the source folder."""
    tests: tuple[tuple[str, ...], ...]
    """Stages: arguments of pytest; a later one runs only if the earlier ones saw nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a stage may take with a fault. Seconds."""

    cpu: float
    """Of the processor; beyond it the fault has fallen."""
    test: float
    """Of the clock, for one test; beyond it that test has failed."""
    wall: float
    """Of the clock, for all; beyond it nothing is known."""


WITHOUT = Limits(cpu=1200.0, test=300.0, wall=1200.0)
"""What a stage may take without one."""


ABOVE = ("tests/lab/simulation", "tests/recording", "-m", "not slow")
LIVE = ("tests/end_to_end", "-m", "not slow and not network")
AREAS = (
    Area("engine", ("engine/*.py",), (("tests/engine",), ABOVE)),
    Area("scheduling", ("scheduling/*.py",), (("tests/scheduling",), ABOVE)),
    Area(
        "planners",
        ("planning/*.py", "planning/scaling/*.py", "runtime/*.py"),
        (("tests/planning", "tests/runtime"), ABOVE),
    ),
    Area("times", ("profiles/*times*.py", "profiles/correction.py"), (("tests/profiles",), ABOVE)),
    Area(
        "call path",
        (
            "server/calls/data_plane.py",
            "server/calls/call.py",
            "server/calls/descriptors.py",
            "server/calls/pending.py",
            "server/calls/driver.py",
            "frontends/http/context.py",
            "frontends/http/protocol.py",
            "frontends/http/infer.py",
        ),
        (
            ("tests/server", "tests/frontends/contract", "tests/frontends/http", "-m", "not slow"),
            LIVE,
        ),
    ),
)
NOT_CHANGED = {"engine/invariants.py"}
"""Checks that tests call; engine's own tests break an engine to see that they speak."""


class _Watch:
    """A plugin of pytest: notes the longest test; and has hypothesis find failures, not shrink."""

    longest = 0.0

    def pytest_sessionstart(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", hypothesis.settings(phases=phases))
        hypothesis.settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.longest = max(self.longest, report.duration)


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module its faulty source; every other one is found as usual."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = "slacktide." + mutant.path.removesuffix(".py").replace("/", ".")
        self._name = self._name.removesuffix(".__init__")
        self._mutant = mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self._name:
            return None
        file = SOURCE / self._mutant.path
        return importlib.util.spec_from_file_location(name, file, loader=self)

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.source, self._mutant.path, "exec"), module.__dict__)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300, help="faults to draw (300)")
    parser.add_argument("--minutes", type=float, default=20.0, help="end after so long (20)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--area", action="append", choices=[area.name for area in AREAS])
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name has TEXT")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # forked processes end with this one
    ends = time.monotonic() + options.minutes * 60.0
    areas = [area for area in AREAS if not options.area or area.name in options.area]
    equivalent = _equivalent()
    names: set[str] = set()
    pool: list[tuple[Area, Mutant]] = []
    for area in areas:
        for pattern in area.modules:
            for file in sorted(SOURCE.glob(pattern)):
                path = str(file.relative_to(SOURCE))
                for mutant in [] if path in NOT_CHANGED else mutants_of(path, file.read_text()):
                    names.add(mutant.name)
                    if mutant.name not in equivalent and options.only in mutant.name:
                        pool.append((area, mutant))
    if not options.area and (gone := sorted(equivalent - names)):
        print("equivalent.txt names faults that are gone:", *gone, sep="\n  ")
        return 2
    drawn = random.Random(options.seed).sample(pool, min(options.count, len(pool)))
    print(f"{len(drawn)} of {len(pool)} faults, {len(equivalent)} listed as equivalent")
    limits: dict[tuple[str, ...], Limits] = {}
    for stage, first in {tests: area for area, _ in drawn for tests in area.tests}.items():
        unchanged = _unchanged(first, stage)
        if unchanged is None:
            print("tests fail without any fault, mend them first: pytest", *stage)
            return 2
        limits[stage] = unchanged
    judged = list(_judged(drawn, limits, options.jobs, ends))
    return _report(areas, judged, len(drawn))


def _equivalent() -> set[str]:
    """Names in equivalent.txt: a line each, its reason indented below it."""
    lines = (HERE / "equivalent.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith(("#", " "))}


def _judged(
    drawn: Sequence[tuple[Area, Mutant]],
    limits: Mapping[tuple[str, ...], Limits],
    jobs: int,
    ends: float,
) -> Iterator[tuple[Area, Mutant, bool | None]]:
    """(area, fault, whether it fell; None: not judged), as they end, `jobs` at a time."""
    waiting = list(reversed(drawn))
    running: dict[int, tuple[int, float, Area, Mutant, int]] = {}

    def start(area: Area, mutant: Mutant, stage: int) -> None:
        tests = area.tests[stage]
        pid, end = _start(mutant, tests, limits[tests])
        running[end] = (pid, time.monotonic() + limits[tests].wall, area, mutant, stage)

    try:
        while running or (waiting and time.monotonic() < ends):
            while waiting and len(running) < jobs and time.monotonic() < ends:
                start(*waiting.pop(), 0)
            ready, _, _ = select.select(list(running), [], [], 1.0)
            for end in list(running):
                pid, until, area, mutant, stage = running[end]
                if end not in ready and time.monotonic() < until:
                    continue
                del running[end]
                fell = not os.read(end, 64).startswith(b"0 ") if end in ready else None
                os.close(end)
                _end(pid)
                if fell is False and stage + 1 < len(area.tests):
                    start(area, mutant, stage + 1)
                    continue
                verdict = "\nnot judged" if fell is None else "" if fell else "\nlives"
                verdict = (
                    f"{verdict}: {mutant.path}:{mutant.line} {mutant.name}\n" if verdict else "."
                )
                print(verdict, end="", flush=True)
                yield area, mutant, fell
    finally:
        for pid, *_ in running.values():
            _end(pid)
    print()


def _unchanged(area: Area, stage: tuple[str, ...]) -> Limits | None:
    """What tests may take that pass with a module that is only written anew; None if they fail."""
    file = next(SOURCE.glob(area.modules[0]))
    source = ast.unparse(ast.parse(file.read_text()))
    mutant = Mutant(str(file.relative_to(SOURCE)), 0, "", "", "", source)
    began = time.monotonic()
    pid, end = _start(mutant, stage, WITHOUT)
    words = os.read(end, 64).split()
    os.close(end)
    _end(pid)
    if not words or words[0] != b"0":
        return None
    longest, cpu = map(float, words[1:])
    took = time.monotonic() - began
    return Limits(10.0 + 3.0 * cpu, 20.0 + 5.0 * longest, 60.0 + 5.0 * took)


def _start(mutant: Mutant, tests: tuple[str, ...], limits: Limits) -> tuple[int, int]:
    """Fork a process that runs `tests` with the fault.

    Its pipe says: exit code of pytest (0: all passed), seconds of the longest test, seconds of the
    processor; nothing if it ended otherwise.
    """
    end, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, end
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.close(end)
    before = time.process_time()
    most = int(before + limits.cpu) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    with contextlib.suppress(BaseException), tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        sys.meta_path.insert(0, _Changed(mutant))
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is loaded
        options += [f"--timeout={limits.test}", f"--basetemp={folder}/t", *tests]
        watch = _Watch()
        code = int(pytest.main(options, plugins=[watch]))
        os.write(write, f"{code} {watch.longest} {time.process_time() - before}".encode())
    os._exit(0)


def _end(pid: int) -> None:
    """End a forked process with all that it started: it leads a group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _report(
    areas: Sequence[Area], judged: Sequence[tuple[Area, Mutant, bool | None]], drawn: int
) -> int:
    total = Counter(area.name for area, _, fell in judged if fell is not None)
    fallen = Counter(area.name for area, _, fell in judged if fell)
    for area in areas:
        if total[area.name]:
            share = fallen[area.name] / total[area.name]
            print(f"{area.name:<12}{fallen[area.name]:>5} of {total[area.name]:<5}{share:6.1%}")
    share = fallen.total() / max(1, total.total())
    print(
        f"{fallen.total()} of {total.total()} faults fell ({share:.1%}); at least {WANTED:.0%} must"
    )
    if len(judged) > total.total():
        print(f"{len(judged) - total.total()} were not judged: the machine was too busy")
    if len(judged) < drawn:
        print(f"time was up: {drawn - len(judged)} were not tried")
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
