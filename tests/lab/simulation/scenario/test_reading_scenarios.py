"""Scenario files: what they say, and that every mistake is named with its line and key."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from slacktide.lab.simulation.scenario import Cell, ScenarioError, build, read_scenario
from slacktide.lab.simulation.scenario.profiles import read_profile
from slacktide.lab.workloads import Fixed
from slacktide.profiles import LatencyTable, ProfileRecord

Read = Callable[..., tuple[Cell, ...]]

GRID = """\
duration: 1s
seeds: [1, 2]
models:
  my.model:
    latency: {batches: [1, 4], p50: [10ms, 20ms]}
applications:
  web:
    model: my.model
    arrivals: poisson:10
grid:
  scheduler:
    - slack
    - {name: edf, guarantee: p99}
  models.my.model.max_batch: [1, 2, 4]
"""


def test_a_grid_gives_every_combination_the_last_key_fastest(read: Read) -> None:
    cells = read(text=GRID)
    assert [tuple(cell.labels.values()) for cell in cells] == [
        ("slack", "1"),
        ("slack", "2"),
        ("slack", "4"),
        ("edf guarantee=p99", "1"),
        ("edf guarantee=p99", "2"),
        ("edf guarantee=p99", "4"),
    ]
    assert cells[4].scenario.scheduler.name == "edf"
    assert cells[4].scenario.models["my.model"].max_batch == 2
    assert cells[4].scenario.seeds == (1, 2)
    assert "grid" not in cells[4].document


def test_a_key_below_a_short_form_is_reached(read: Read) -> None:
    (cell,) = read("scheduler=slack", "scheduler.kappa=0.5")
    assert cell.scenario.scheduler.options.deferral_discount == 0.5


def test_settings_replace_keys_of_the_file(read: Read) -> None:
    (cell,) = read("duration=5s", "applications.web.slo={p99_alone: 3}", "seeds=7")
    assert cell.scenario.duration == 5.0
    assert cell.scenario.seeds == (7,)
    (stream,) = build(cell).streams
    assert isinstance(stream.deadlines, Fixed)
    assert stream.deadlines.seconds == pytest.approx(3 * (0.005 + 0.0005 * 17))


def test_the_title_is_the_files_name_unless_it_says_otherwise(read: Read) -> None:
    assert read()[0].scenario.title == "s"
    assert read("title=A day")[0].scenario.title == "A day"


def lines_of(text: str, before: str, after: str) -> str:
    assert before in text
    return text.replace(before, after)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("seeds: [1, 2]", "seeds: [1, 1]", "s.yaml, line 2: seeds: expected each seed once"),
        ("seeds: [1, 2]", "seed: 1", "s.yaml, line 2: seed: unknown key; did you mean 'seeds'?"),
        ("duration: 1s\n", "", "s.yaml: expected a key 'duration'"),
        ("duration: 1s", "duration: 1", "line 1: duration: expected a duration with its unit"),
        ("duration: 1s", "resize_s: -1s\nduration: 1s", "line 1: resize_s: expected"),
        ("latency:", "latncy:", "line 5: models.my.model.latncy: unknown key; did you mean 'lat"),
        ("    latency: {", "    cores: 1 #", "expected exactly one of 'profile', 'folder'"),
        ("p50: [10ms, 20ms]", "p50: [10ms, -1ms]", "line 5: models.my.model.latency.p50[1][0]: "),
        ("model: my.model", "model: my.modle", "line 8: applications.web.model: no model 'my.mod"),
        ("- slack", "- slak", "s.yaml, line 12 (grid): scheduler.name: expected a scheduler, got"),
        ("[1, 2, 4]", "[1, 0]", "s.yaml, line 14 (grid): models.my.model.max_batch: expected gr"),
        ("max_batch: [", "max_bach: [", "(grid): models.my.model.max_bach: unknown key"),
        ("  scheduler:\n", "  seeds:\n", "line 11: grid.seeds: 'seeds' cannot be varied"),
        ("  scheduler:\n", "  duration.x:\n", "line 11: grid.duration.x: expected a section"),
        ("duration: 1s", "duration: 1s\nduration: 2s", "line 2: key 'duration' is repeated"),
        ("duration: 1s", "[", "s.yaml: line "),
    ],
)
def test_mistakes_are_named_with_line_and_key(
    read: Read, before: str, after: str, message: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(text=lines_of(GRID, before, after))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("duration", "--set: expected KEY=VALUE"),
        ("duration=2", "--set duration: duration: expected a duration"),
        ("duration.x=1", "--set duration.x: expected a section at duration, got"),
        ("scheduler=[", "--set scheduler: line 1"),
        ("grid.scheduler=[slak]", "--set grid.scheduler (grid): scheduler.name: expected a sched"),
    ],
)
def test_bad_settings_name_themselves(read: Read, setting: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(setting)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["applications.web.arrivals=poisson:-1"], "web.arrivals: rate: must be positive"),
        (["applications.web.arrivals=poison:1"], "did you mean 'poisson'"),
        (
            ["applications.web.arrivals=5"],
            "web.arrivals: expected a process such as poisson:5, got",
        ),
        (["applications.web.slo=50"], "web.slo: expected a duration such as 50ms, 1.5s or 2m, got"),
        (["applications.web.slo={within: 5}"], "web.slo: expected a duration such as 50ms, 1.5s"),
        (["applications.web.lengths=5"], "web.lengths: expected lengths such as constant:5, got"),
        (
            ["applications.web.arrivals=poisson:1e9"],
            "web.arrivals: rate: expected at most",
        ),
        (["applications.web.arrivals=trace:no.csv"], "web.arrivals: trace: cannot read"),
        (["applications.web.arrivals=trace:empty.csv"], "empty.csv: time_s: the trace is empty"),
        (
            ["applications.web.arrivals=trace:back.csv"],
            "web.arrivals: back.csv, line 3, time_s: must not decrease, but comes after 2",
        ),
        (["applications.web.arrivals=trace:odd.csv"], "odd.csv, line 1: unknown column 'when'"),
        (["applications.web.lengths=modes:3~-1"], "web.lengths: sigma: must be finite"),
        (["applications.web.lengths=null"], "expected 'lengths'"),
        (["applications.web.slo=[40]"], "applications.web.slo: expected a text such as '50ms'"),
        (["applications.web.slo=fixed:40"], "web.slo: fixed seconds: expected a duration"),
        (["models.m.max_batch=8"], "models.m.max_batch: the profile of 'm' has times up to b"),
        (["models.m.cores=2"], "models.m: cores: needs 2 cores, but the server may use only 1"),
        (["models.m.padded=null", "models.m.profile=no.json"], "m.profile: cannot be read: No"),
        (["models.m.padded=null", "models.m.profile=odd.csv"], "models.m.profile: is not JSON"),
        (["models.m.padded=null", "models.m.folder=nowhere"], "models.m.folder: "),
        (
            ["models.n={padded: {c0: 1ms, c1: 1ms}}"],
            "models.n: expected an application that uses it",
        ),
        (
            ["models.m.padded=null", "models.m.latency={batches: [1, 2], p50: [1ms]}"],
            "models.m.latency: p50: expected 2 rows of 1 values",
        ),
        (
            ["models.m.padded=null", "models.m.latency={batches: [1, 2], p50: [1ms, 2ms]}"],
            "applications.web.lengths: expected none, or a model with 'padded': ",
        ),
        (
            [
                "models.m.padded=null",
                "models.m.latency={batches: [1, 2], p50: [1ms, 2ms]}",
                "applications.web.lengths=null",
                "models.m.max_batch=4",
            ],
            "models.m.max_batch: the profile of 'm' was measured up to batch 2, not 4",
        ),
        (
            ["applications.web.link={bandwidth: 1MB, payload: 1kB}", "applications.web.notice=1ms"],
            "expected either 'link' or 'notice'",
        ),
        (["applications.web.link={payload: 1kB}"], "web.link: expected exactly one of 'bandw"),
        (
            ["applications.web.link={bandwidth: 1MB, trace: 4g, payload: 1kB}"],
            "web.link: expected exactly one of 'bandwidth' and 'trace'",
        ),
        (
            ["applications.web.link={bandwidth: 0, payload: 1kB}"],
            "link.bandwidth: expected greater than 0",
        ),
        (
            ["applications.web.link={trace: no.csv, payload: 1kB}"],
            "applications.web.link.trace: trace: cannot read",
        ),
        (
            ["applications.web.link={trace: zero.csv, payload: 1kB}"],
            "web.link.trace: expected a trace with some bandwidth, got only outages",
        ),
        (
            ["applications.web.link={trace: '5g:seed=x', payload: 1kB}"],
            "web.link.trace: link seed: expected a number",
        ),
        (
            ["scheduler=oracle_slack", "applications.web.rows=[1, 2]"],
            "--set scheduler: scheduler: oracle_slack: expected a padded model",
        ),
        (
            ["scheduler={name: oracle_slack, kapa: 1}"],
            "--set scheduler: scheduler.kapa: unknown key; did you mean 'kappa'?",
        ),
        (["applications.web.hint={}"], "web.hint: expected exactly one of 'error' and 'claim'"),
    ],
)
def test_faults_that_only_building_shows_are_named_too(
    read: Read, tmp_path: Path, settings: list[str], message: str
) -> None:
    (tmp_path / "empty.csv").write_text("time_s\n")
    (tmp_path / "back.csv").write_text("time_s\n2\n1\n")
    (tmp_path / "odd.csv").write_text("when\n1\n")
    (tmp_path / "zero.csv").write_text("time_s,bandwidth_mbps\n0,0\n1,0\n")
    with pytest.raises(ScenarioError) as caught:
        build(read(*settings)[0])
    assert message in str(caught.value)


def test_more_windows_than_can_be_are_refused_when_they_are_drawn(read: Read) -> None:
    world = build(read("applications.web.arrivals=windows:1:0.00001ms:cv=1")[0])
    with pytest.raises(ScenarioError, match=r"applications\.web\.arrivals: .* at most") as caught:
        next(iter(world.items(1)))
    again = copy.copy(caught.value)  # as from another process, by its parts
    assert again.problems == caught.value.problems


def test_lines_are_those_of_the_file_also_where_building_finds_the_mistake(read: Read) -> None:
    text = lines_of(GRID, "poisson:10", "poisson:-10")
    with pytest.raises(ScenarioError, match=r"s\.yaml, line 9: applications\.web\.arrivals: rate"):
        build(read(text=text)[0])


def test_all_problems_are_told_at_once(read: Read) -> None:
    text = lines_of(lines_of(GRID, "model: my.model", "model: 3"), "seeds:", "sed:")
    with pytest.raises(ScenarioError) as caught:
        read(text=text)
    assert len(caught.value.problems) == 2


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.yaml: cannot be read: No such file"):
        read_scenario(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"title: \xe9\n")
    with pytest.raises(ScenarioError, match=r"latin\.yaml: expected UTF-8"):
        read_scenario(tmp_path / "latin.yaml")
    (tmp_path / "long.yaml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(ScenarioError, match=r"long\.yaml: expected at most"):
        read_scenario(tmp_path / "long.yaml")


def test_a_profile_may_come_as_the_program_prints_it(tmp_path: Path) -> None:
    record = ProfileRecord(LatencyTable.linear(0.010, 0.002, 8, cores=(1, 2)), {})
    file = tmp_path / "profile.json"
    printed = {"9": {**record.to_dict(), "fit": {}}, "10": {**record.to_dict(), "fit": {}}}
    for document in (record.to_dict(), printed):
        file.write_bytes(orjson.dumps(document))
        read_profile.cache_clear()
        assert read_profile(file).record == record
