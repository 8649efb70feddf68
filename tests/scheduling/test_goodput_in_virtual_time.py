"""How the policies compare, on one lane in virtual time (docs/decisions/0005-slack.md).

Means over two seeds; thresholds leave room for chance, the decision page has the figures.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slacktide.scheduling import POLICIES, make_scheduler


def goodput(
    lab: SimpleNamespace,
    policy: str,
    latency: str,
    load: float,
    slos: list[float],
    *,
    cv: float = 1.0,
) -> float:
    """Share answered in time at `load` × batch-1 capacity, deadlines `slos` × batch-1 latency."""
    law = getattr(lab, latency)
    alone = law(1)
    total = 0.0
    for seed in (1, 2):
        times = lab.LogNormalTimes(law, 0.05)
        view = lab.LaneView()
        scheduler = make_scheduler(policy, {}, max_batch=32, times=times, view=view)
        arrivals = lab.requests(load / alone, 1200, [slo * alone for slo in slos], cv=cv, seed=seed)
        total += lab.simulate(scheduler, view, arrivals, times, seed=seed).goodput
    return total / 2


def test_edf_collapses_under_overload_where_slack_does_not(lab) -> None:
    assert goodput(lab, "edf", "weight_bound", 8.0, [10]) < 0.4
    assert goodput(lab, "slack", "weight_bound", 8.0, [10]) > 0.75


@pytest.mark.parametrize("latency", ["residual", "weight_bound"])
@pytest.mark.parametrize("slos", [[2], [5], [10], [2, 5, 10]])
@pytest.mark.parametrize("load", [1.3, 2.0])
def test_slack_is_at_least_as_good_as_edf(lab, latency: str, slos: list[float], load: float):
    edf = goodput(lab, "edf", latency, load, slos)
    assert goodput(lab, "slack", latency, load, slos) >= edf - 0.003


def test_under_light_load_everyone_is_served(lab) -> None:
    for policy in ("fifo", "edf", "clipper", "nexus", "orloj", "orloj_text", "slack"):
        assert goodput(lab, policy, "weight_bound", 0.5, [10]) > 0.99


def test_jitter_costs_clockwork_every_other_batch_unless_it_is_patient(lab) -> None:
    by_tolerance = {}
    for tolerance in (0.001, 0.5):
        times = lab.LogNormalTimes(lab.weight_bound, 0.05)
        view = lab.LaneView()
        scheduler = make_scheduler(
            "clockwork", {"tolerance": tolerance}, max_batch=32, times=times, view=view
        )
        run = lab.simulate(scheduler, view, lab.requests(200.0, 1200, [0.1]), times)
        by_tolerance[tolerance] = run.goodput
    assert 0.55 < by_tolerance[0.001] < 0.8
    assert by_tolerance[0.5] > 0.95


def test_bursts_hurt_fifo_most(lab) -> None:
    by_policy = {
        policy: goodput(lab, policy, "residual", 1.3, [5], cv=3.0)
        for policy in ("fifo", "edf", "slack")
    }
    assert by_policy["fifo"] < 0.5 * by_policy["edf"]
    assert by_policy["edf"] < by_policy["slack"]


def test_every_request_ends_once(lab) -> None:
    for policy in POLICIES:
        times = lab.LogNormalTimes(lab.residual, 0.2)
        view = lab.LaneView()
        scheduler = make_scheduler(policy, {}, max_batch=8, times=times, view=view)
        arrivals = lab.requests(2 / 0.012, 500, [0.03, 0.1], seed=5)
        run = lab.simulate(scheduler, view, arrivals, times)
        assert run.on_time + run.late + sum(run.refused.values()) == run.submitted
        assert len(scheduler) == 0
