"""Goals say what was measured, and miss what is missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slacktide_papers.harness.experiments import Goal
from slacktide_papers.sponge.goals import CoresRow, goals_of

BASE = CoresRow(
    experiment="figure-4",
    setting="figure-4",
    policy="vertical",
    violation_rate=0.002,
    unavoidable_rate=0.001,
    beyond_rate=0.001,
    mean_cores=7.0,
    p99_ms=900.0,
    clairvoyant_cores=6.0,
    steady_cores=6.5,
    replicas=1,
    needed=0,
    seeds=1,
    published="",
    published_cores="",
)


def row(policy: str, beyond: float, cores: float, **fields: object) -> CoresRow:
    return replace(
        BASE,
        policy=policy,
        violation_rate=0.001 + beyond,
        beyond_rate=beyond,
        mean_cores=cores,
        **fields,
    )


OTHERS = (
    row("static-6", 0.05, 6.0),
    row("static-8", 0.001, 8.0),
    row("static-16", 0.0002, 16.0),
    row("fa2", 0.02, 6.5),
    row("joint", 0.0015, 6.9),
)


def goals(*rows: CoresRow) -> dict[str, Goal]:
    return {goal.what: goal for goal in goals_of(rows)}


def test_all_are_met_and_shown():
    by_metric = goals(BASE, *OTHERS)
    assert {metric: (goal.measured, goal.wanted) for metric, goal in by_metric.items()} == {
        "beyond the unavoidable, against static-16": ("0.10 %", "≤ 0.12 %"),
        "cores ÷ static-16": ("0.44 ×", "≤ 0.5 ×"),
        "cores ÷ clairvoyant (6.00)": ("1.17 ×", "≤ 1.2 ×"),
        "cores ÷ steady clairvoyant (6.50)": ("1.08 ×", "≤ 1.2 ×"),
        "cores, against the cheapest equal static size": ("7.00", "≤ 8.00"),
        "beyond the unavoidable, fa2 ÷ ours": ("20.0 ×", "≥ 15 ×"),
        "joint ÷ vertical: cores; points of violations": ("0.99 ×; +0.05", "≤ 1 ×; +0.1"),
    }
    assert all(goal.met for goal in by_metric.values())


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        ({"beyond_rate": 0.0013}, "beyond the unavoidable, against static-16"),
        ({"beyond_rate": 0.0014}, "beyond the unavoidable, fa2 ÷ ours"),
        ({"mean_cores": 7.21}, "cores ÷ clairvoyant (6.00)"),
        ({"mean_cores": 7.81}, "cores ÷ steady clairvoyant (6.50)"),
        ({"mean_cores": 8.1}, "cores ÷ static-16"),
        ({"mean_cores": 8.1}, "cores, against the cheapest equal static size"),
        ({"mean_cores": 6.8}, "joint ÷ vertical: cores; points of violations"),
        ({"violation_rate": 0.0001}, "joint ÷ vertical: cores; points of violations"),
    ],
)
def test_a_missed_goal_is_shown_as_missed(ours: dict[str, float], missed: str) -> None:
    assert not goals(replace(BASE, **ours), *OTHERS)[missed].met


def test_better_than_every_static_size_is_met():
    by_metric = goals(replace(BASE, violation_rate=0.0), *OTHERS)
    assert by_metric["cores, against the cheapest equal static size"].wanted == "none equal"


@pytest.mark.parametrize(("fa2", "met"), [(0.001, True), (0.0, False)])
def test_none_beyond_the_unavoidable_is_fewer_than_any(fa2: float, met: bool) -> None:
    by_metric = goals(replace(BASE, beyond_rate=0.0), row("fa2", fa2, 6.0))
    assert by_metric["beyond the unavoidable, fa2 ÷ ours"].met is met


def test_where_the_load_outgrows_one_instance_joint_is_judged_alone():
    fields = {"setting": "4x-load", "needed": 5, "replicas": 6}
    by_metric = goals(row("vertical", 0.5, 16.0, **fields), row("joint", 0.005, 30.0, **fields))
    assert by_metric["joint after 60 s, 30.0 cores: violations"].met
    assert by_metric["joint says how many instances are needed"].measured == "5, had 6"
    assert len(by_metric) == 2
