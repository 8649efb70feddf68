"""Schedulers and policies of others: named by entry points, imported only where that is allowed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from slacktide._extensions import installed
from slacktide._version import __version__
from slacktide.domain.options import OptionError
from slacktide.domain.registry import Registry
from slacktide.lab.simulation.scenario import ScenarioError, build, run_cell
from slacktide.lab.simulation.scenario.reading import parse_scenario
from slacktide.models import plugins
from slacktide.models.repository.errors import SettingsError
from slacktide.models.repository.settings_file import parse_settings, validate_settings
from slacktide.planning.pipelines.policies import PLACEMENTS, make_placement
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.scheduling import POLICIES
from slacktide.server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
REGISTRIES: tuple[Registry[Any], ...] = (POLICIES, SCALING_POLICIES, PLACEMENTS)
OWN = "examples.policies.deadline_first:DeadlineFirst"
SCENARIO = f"""\
duration: 2s
scheduler: {{name: '{OWN}', margin: 2ms}}
models:
  m: {{padded: {{c0: 5ms, c1: 0.5ms, sizes: [1, 2, 4]}}}}
applications:
  web: {{model: m, arrivals: 'poisson:100', lengths: 'modes:short=3,long=17', slo: 40ms}}
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registries as they were, and the repository's root as the folder of the process."""
    monkeypatch.chdir(ROOT)
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_offers", {})
        monkeypatch.setattr(registry, "importer", None)
    kept = {id(registry): dict(registry) for registry in REGISTRIES}
    yield
    for registry in REGISTRIES:
        registry.clear()
        registry.update(kept[id(registry)])
    installed.cache_clear()


def offered(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """As if packages with these entry points were installed."""

    def entry_points(*, group: str) -> list[EntryPoint]:
        return [point for point in points if point.group == group]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    installed.cache_clear()


def test_the_example_runs_in_a_scenario_that_may_import(tmp_path: Path) -> None:
    (cell,) = parse_scenario(SCENARIO, "s.yaml", tmp_path, imports=True)
    assert cell.scenario.scheduler.stated() == {"margin": 0.002}
    report = run_cell(cell, 1)
    assert 0.1 < report.goodput < 1.0


def test_a_scenario_that_may_not_says_so(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="would import code"):
        parse_scenario(SCENARIO, "s.yaml", tmp_path)


def test_one_that_breaks_its_contract_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    text = SCENARIO.replace(OWN, "tests.scheduling.test_guard:TakesTwice").replace(
        ", margin: 2ms", ""
    )
    (cell,) = parse_scenario(text, "s.yaml", tmp_path, imports=True)
    build(cell)
    with pytest.raises(ScenarioError, match=r"models.m: scheduler .* is proposed twice"):
        run_cell(cell, 1)


def test_server_settings_may_name_a_class() -> None:
    assert ServerSettings(scheduler=OWN, scheduler_options={"margin": "2ms"}).scheduler == OWN
    with pytest.raises(ValueError, match=r"scheduler_options: .*margin: expected at least 0s"):
        ServerSettings(scheduler=OWN, scheduler_options={"margin": -1.0})
    with pytest.raises(ValueError, match="cannot be used: ModuleNotFoundError"):
        ServerSettings(scheduler="no.such:Thing")


@pytest.mark.parametrize(
    "text", [f"scheduler: '{OWN}'", f"cores: {{min: 1, max: 2}}\nscaling: '{OWN}'"]
)
def test_a_file_of_a_repository_never_imports_by_name(text: str) -> None:
    ServerSettings(scheduler=OWN)  # allowed there, and still not here
    with pytest.raises(SettingsError, match="would import code"):
        parse_settings(text.encode(), where="m/slacktide.yaml")


def test_a_file_may_name_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, EntryPoint("mine", OWN, "slacktide.schedulers"))
    document = parse_settings(b"scheduler: {name: mine, margin: 3ms}", where="m/slacktide.yaml")
    choice = validate_settings(document, where="").scheduler
    assert (choice.name, choice.stated()) == ("mine", {"margin": 0.003})


def test_an_entry_point_that_cannot_be_imported_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered(monkeypatch, EntryPoint("mine", "no_such_module:Thing", "slacktide.schedulers"))
    complaint = (
        r"scheduler.name: scheduler 'mine' \(no_such_module:Thing of no_such_module:Thing\) cannot "
        "be used: ModuleNotFoundError: No module named 'no_such_module'"
    )
    with pytest.raises(SettingsError, match=complaint):
        parse_settings(b"scheduler: mine", where="m/slacktide.yaml")
    assert validate_settings({}, where="").scheduler.name == "slack"


def test_built_in_parts_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, EntryPoint("slack", OWN, "slacktide.schedulers"))
    plugins.offer_entry_points()
    assert POLICIES.find("slack").built_in


@pytest.mark.parametrize(
    ("registry", "name"),
    [
        *((POLICIES, name) for name in ("clipper", "clockwork", "nexus", "symphony")),
        *((SCALING_POLICIES, name) for name in ("fa2", "vpa")),
        *((PLACEMENTS, name) for name in ("distream", "jellyfish", "rim")),
    ],
)
def test_a_policy_of_papers_says_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, registry: Registry[Any], name: str
) -> None:
    registry.pop(name)
    offered(monkeypatch)
    complaint = f"{registry.kind} {name!r} is not installed; install it with: pip install ./papers"
    with pytest.raises(OptionError, match=complaint):
        registry.find(name)


def test_a_name_that_two_distributions_register_is_refused_with_both(install: Any) -> None:
    install("shop-policies", "1.0", "schedulers", mine=OWN, other=OWN)
    install("yard-policies", "2.1", "schedulers", mine="elsewhere:Mine")
    plugins.offer_entry_points()
    complaint = (
        "name: scheduler 'mine' is registered by two distributions, yard-policies 2.1 "
        f"(elsewhere:Mine) and shop-policies 1.0 ({OWN}); uninstall one of them"
    )
    with pytest.raises(OptionError) as refusal:
        POLICIES.find("mine")
    assert str(refusal.value) == complaint
    assert POLICIES.find("other").name == "other"


def test_glue_that_two_distributions_register_is_refused_with_both(install: Any) -> None:
    install("shop-policies", "1.0", "glue", flip="numpy:flip")
    install("yard-policies", "2.1", "glue", flip="numpy:fliplr")
    with pytest.raises(OptionError, match="glue function 'flip' is registered by two distri"):
        plugins.glue_target("flip")


@pytest.mark.parametrize("text", ["raise RuntimeError('no GPU here')", "raise SystemExit(3)"])
def test_one_that_raises_on_import_is_named_and_the_others_work(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "breaks.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    install("shop-policies", "1.0", "schedulers", mine="breaks:Mine", other=OWN)
    plugins.offer_entry_points()
    reason = "SystemExit: 3" if "Exit" in text else "RuntimeError: no GPU here"
    with pytest.raises(OptionError) as refusal:
        POLICIES.find("mine")
    place = "(breaks:Mine of shop-policies 1.0)"
    assert str(refusal.value) == f"name: scheduler 'mine' {place} cannot be used: {reason}"
    assert POLICIES.find("other").name == "other"


def test_a_policy_of_papers_of_another_version_is_refused(install: Any) -> None:
    papers = "slacktide_papers.policies.clockwork:Clockwork"
    install("slacktide-papers", "0.0.9", "schedulers", clockwork=papers)
    POLICIES.pop("clockwork")
    plugins.offer_entry_points()
    with pytest.raises(OptionError) as refusal:
        POLICIES.find("clockwork")
    assert str(refusal.value) == (
        "name: scheduler 'clockwork' cannot be used: slacktide-papers 0.0.9 does not match "
        f"slacktide {__version__}; install the same version of both"
    )


def test_papers_of_another_version_are_mentioned_once(
    install: Any, caplog: pytest.LogCaptureFixture
) -> None:
    install("slacktide-papers", "0.0.9", "schedulers")
    plugins.warn_of_mismatches.cache_clear()
    try:
        plugins.offer_entry_points()
        plugins.offer_entry_points()
    finally:
        plugins.warn_of_mismatches.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        f"slacktide-papers 0.0.9 does not match slacktide {__version__}; install the same "
        "version of both; until then it cannot be used"
    ]


def test_a_placement_may_be_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    rim = "slacktide_papers.policies.placement_policies:RimPlacement"
    offered(monkeypatch, EntryPoint("mine", rim, "slacktide.placements"))
    plugins.offer_entry_points()
    assert make_placement("mine", {"server": 4}) is not None


def test_a_replay_imports_only_once_it_may() -> None:
    with pytest.raises(OptionError, match="expected a scheduler"):
        POLICIES.find(OWN)
    plugins.admit_all()
    assert not POLICIES.find(OWN).built_in


def test_glue_is_named_by_the_owner_or_an_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugins, "_GLUE", {})
    point = EntryPoint("mirror", "shop.pictures:mirror", "slacktide.glue")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (point,))
    assert plugins.glue_target("mirror") == "shop.pictures:mirror"
    with pytest.raises(OptionError, match="got 'miror'; did you mean 'mirror'"):
        plugins.glue_target("miror")
    with pytest.raises(OptionError, match="expected the name of a glue function"):
        plugins.glue_target("os:remove")
    ServerSettings(glue={"flip": "numpy:fliplr"})
    assert plugins.glue_target("flip") == "numpy:fliplr"
    for target, why in [("numpy:nothing", "no attribute"), ("numpy:pi", "expected a function")]:
        with pytest.raises(OptionError, match=f"glue.*flip: '{target}' cannot be used: .*{why}"):
            ServerSettings(glue={"flip": target})
