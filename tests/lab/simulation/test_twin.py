"""The simulator is the engine: same seed, same log; same log as fed by hand; known closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Cancelled, OutcomeKind
from slacktide.lab.simulation import ByProfile, SimulatedUpload, rng_for
from slacktide.lab.simulation.items import ExternalEvent, Failure
from slacktide.profiles import CorrectedTimes, LatencyTable

POLICIES = ["fifo", "edf", "slack"]


def arrivals(make, count, *, rate, slo, seed=1):
    generator = rng_for(seed, "arrivals")
    at = np.cumsum(generator.exponential(1.0 / rate, count))
    return [make.request(i, float(time), slo) for i, time in enumerate(at)]


def noisy_world(make, policy, seed, **fields):
    times = CorrectedTimes(LatencyTable.linear(0.004, 0.001, 8, spread=1.5))
    return make.world(
        scheduler=policy,
        max_batch=8,
        execution=ByProfile(times, rng_for(seed, "batch times")),
        fixed=0.004,
        per_row=0.001,
        **fields,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_log(make, policy):
    first, again, reseeded = (
        noisy_world(make, policy, seed).run_all(
            arrivals(make, 300, rate=700.0, slo=0.05, seed=seed)
        )
        for seed in (1, 1, 2)
    )
    assert first.log == again.log
    assert first.log != reseeded.log
    assert len(first.outcomes) == 300


@pytest.mark.parametrize("policy", POLICIES)
def test_the_engine_says_the_same_if_its_events_are_fed_by_hand(make, policy):
    world = noisy_world(make, policy, 5, start_s=0.01)
    items = arrivals(make, 200, rate=900.0, slo=0.03)
    items[50] = SimulatedUpload(
        make.notice(50, items[50].arrival, items[50].arrival + 0.01, slo=0.03),
        replace(items[50]),
        items[50].arrival + 0.005,
    )
    items.insert(100, Failure(items[99].arrival, "lane0"))
    world.run_all(items)
    engine = world.fresh_engine()
    for now, events, commands in world.log:
        wakeup = engine.next_wakeup()
        wakeup_at = now if wakeup is None else max(wakeup, engine.state.now)
        assert now <= wakeup_at, "the timer was due before this event"
        assert engine.handle_all(events, now=now) == list(commands)


def test_fifo_one_by_one_waits_as_the_formula_says(make):
    # M/D/1: mean wait = ρ · service / (2 · (1 − ρ)) (Pollaczek and Khinchin).
    service, load, count = 1.0, 0.7, 30_000
    world = make.world(max_batch=1, fixed=service, per_row=0.0, watched=False)
    world.run_all(arrivals(make, count, rate=load / service, slo=1e9, seed=4))
    waits = [outcome.queue_s for outcome in world.outcomes.values()]
    assert len(waits) == count
    assert np.mean(waits) == pytest.approx(load * service / (2.0 * (1.0 - load)), rel=0.05)
    assert world.simulation.hardware.busy_s == pytest.approx(count * service)
    assert world.simulation.hardware.rows == world.simulation.hardware.batches == count


workload = st.lists(
    st.tuples(
        st.sampled_from(["request", "upload", "stalled", "withdrawn", "failure"]),
        st.integers(0, 8),  # gap before it, in eighths of a second: many ties
        st.integers(1, 24),  # budget, in eighths
        st.integers(1, 4),  # rows
        st.booleans(),  # best effort
    ),
    max_size=30,
)


@given(workload, st.sampled_from(POLICIES), st.integers(1, 2), st.sampled_from([0.0, 0.25]))
def test_everybody_gets_exactly_one_outcome_whatever_happens(make, drawn, policy, lanes, start_s):
    # The fixture `make` only builds; nothing is shared between examples.
    world = make.world(scheduler=policy, lanes=lanes, start_s=start_s, fixed=0.25, per_row=0.125)
    items, now = [], 0.0
    for id, (kind, gap, budget, rows, best_effort) in enumerate(drawn):
        now += gap / 8
        slo = budget / 8
        request = make.request(id, now, slo, rows=rows, best_effort=best_effort)
        notice = make.notice(id, now, now + 0.25, slo)
        if kind == "request":
            items.append(request)
        elif kind == "upload":
            items.append(SimulatedUpload(notice, request, now + rows / 8))
        elif kind == "stalled":
            items.append(SimulatedUpload(notice, None, now))
        elif kind == "withdrawn":
            items += [request, ExternalEvent(now, Cancelled(id))]
        else:
            items.append(Failure(now, "lane0"))
    world.run_all(items)  # invariants are checked after every event
    expected = {id for id, (kind, *_) in enumerate(drawn) if kind != "failure"}
    assert set(world.outcomes) == expected
    assert world.simulation.in_flight == 0
    counts = world.engine.state.request_table.counts
    assert sum(count.requests for count in counts.values()) == len(expected)
    assert not world.engine.state.request_table.entries
    late = [o for o in world.outcomes.values() if o.kind is OutcomeKind.LATE]
    assert all(outcome.budget_s is not None and outcome.budget_s < 0 for outcome in late)
