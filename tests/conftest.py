"""What holds for every test: a property is judged by what it says, never by its run time."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from slacktide._extensions import installed
from slacktide.domain.registry import Registry
from slacktide.lab.workloads.specs import ARRIVALS
from slacktide.models.plugins import offer_entry_points
from slacktide.planning.pipelines.policies import PLACEMENTS
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.scheduling import POLICIES

# Tests of every policy run for the policies of `papers`, too.
REGISTRIES: tuple[Registry[Any], ...] = (POLICIES, SCALING_POLICIES, PLACEMENTS, ARRIVALS)
offer_entry_points()
for registry in REGISTRIES:
    for name in tuple(registry._offers):
        registry.find(name)

# A busy machine makes examples slow; only pytest's own timeout ends a test that hangs.
settings.register_profile(
    "quick", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=300)
settings.load_profile("quick")

# The processes of pytest-xdist ignore SIGINT, which tests of Ctrl-C would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROCESSES = (
    "end_to_end", "chaos", "cli", "executors", "server", "frontends", "models", "client", "cluster",
    "docs", "lab/load", "lab/netem", "lab/examples", "fuzz", "wheels", "bench", "mutation",
)  # fmt: skip
"""Folders whose tests start processes or open sockets."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests with processes and sockets first, which wait for most of their time.

    Two processes share the files (`make test`). The tests of pure packages come last: they are many
    short ones, which both can end with.
    """
    here = Path(__file__).parent

    def is_pure(item: pytest.Item) -> bool:
        return not item.path.relative_to(here).as_posix().startswith(PROCESSES)

    items.sort(key=is_pure)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine: by its fixture `run` where it has one, else on uvloop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run = pyfuncitem.funcargs.get("run", uvloop.run)
    run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what a test logged of names that are not UTF-8: reports go from process to process
    as UTF-8."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


class Install(Protocol):
    """Registers extensions as if a distribution of this name and version were installed."""

    def __call__(self, distribution: str, version: str, group: str, **points: str) -> None: ...


@pytest.fixture
def install(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Install]:
    def register(distribution: str, version: str, group: str, **points: str) -> None:
        folder = tmp_path_factory.mktemp("site")
        metadata = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {distribution}\nVersion: {version}\n")
        lines = (f"{name} = {target}" for name, target in points.items())
        text = "\n".join([f"[slacktide.{group}]", *lines])
        (metadata / "entry_points.txt").write_text(text)
        monkeypatch.syspath_prepend(folder)
        installed.cache_clear()

    installed.cache_clear()
    yield register
    installed.cache_clear()


@pytest.fixture(autouse=True)
def _registries_as_they_were() -> Iterator[None]:
    """What a test imports by name, no other test sees."""
    before = [
        (registry, dict(registry), dict(vars(registry)), dict(registry._offers))
        for registry in REGISTRIES
    ]
    yield
    for registry, entries, attributes, offers in before:
        registry.clear()
        registry.update(entries)
        vars(registry).update(attributes, _offers=offers)
