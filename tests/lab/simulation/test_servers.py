"""Several servers in virtual time: outcomes, deaths, forwarding."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import ClassVar

import pytest
from bench.cluster_routings import OnRefusal, Oracle, WatchedServers
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.domain import Deployment, LaneSpec, Plan, PoolId, Request, Route
from slacktide.engine import Engine
from slacktide.lab.simulation import AsExpected, Simulation
from slacktide.lab.simulation.servers.routings import Alone, ByRule
from slacktide.lab.simulation.servers.world import Death, HopTerms, ReportTerms
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import PoolRecipe

TABLE = LatencyTable.from_grid(
    (1, 2, 4), (1,), [[0.010], [0.014], [0.022]], [[0.010], [0.014], [0.022]]
)
POOL = PoolId("m", "1")
PLAN = Plan((LaneSpec("lane", (0,)),), (Deployment(POOL, "lane", 4),), (Route("m", POOL),))


def simulation(name, answered, begin, check=False):
    def parts(pool, max_batch, view):
        return PoolRecipe("slack").parts(CorrectedTimes(TABLE), max_batch=max_batch, view=view)

    truth = AsExpected(CorrectedTimes(TABLE))
    return Simulation(Engine(parts), PLAN, truth, answered=answered, begin=begin, check=check)


def servers(routing=ByRule, names="abc", *, check=False, **options):
    make = partial(simulation, check=check)
    return WatchedServers(names, make, routing, models=["m"], **options)


def burst(home: str, count: int, *, at: float = 0.01, every: float = 0.0, slo: float = 0.05):
    for i in range(count):
        arrival = at + every * i
        yield home, Request(i, "m", arrival, arrival + slo)


def test_a_burst_at_one_server_is_served_by_all():
    goodputs = {}
    for routing in (Alone, OnRefusal, ByRule, Oracle):
        world = servers(routing)
        world.run(burst("a", 24))
        goodputs[routing] = world.score.goodput
        assert sum(world.score.outcomes.values()) == 24
    assert goodputs[Alone] < goodputs[OnRefusal] <= goodputs[ByRule]
    assert goodputs[ByRule] >= goodputs[Oracle] - 0.1


def test_hops_count_for_the_deadline():
    world = servers(hop=HopTerms(0.030))
    world.run(burst("a", 24))
    assert world.score.forwarded == 0  # 60 ms of hops, 50 ms of budget
    near = servers(hop=HopTerms(0.001, bytes_per_s=1e6, request_bytes=60_000))
    near.run(burst("a", 24))
    assert near.score.forwarded == 0


def test_runs_repeat():
    scores = []
    for _ in range(2):
        world = servers(reports=ReportTerms(delay_s=0.1, loss=0.3), seed=3)
        world.run(burst("a", 60, every=0.002))
        scores.append((world.score.outcomes, world.score.forwarded))
    assert scores[0] == scores[1]


def test_what_a_dead_peer_held_is_asked_again():
    world = servers(names="ab")
    world.run(burst("a", 20, every=0.001, slo=0.2), [Death("b", at=0.020)])
    assert world.score.outcomes["failed"] == 0
    assert world.score.outcomes["served"] > 10


def test_requests_of_a_dead_home_are_lost_and_it_comes_back_empty():
    world = servers(names="ab")
    arrivals = [("a", Request(i, "m", 0.01 * i, 0.01 * i + 0.05)) for i in range(100)]
    world.run(arrivals, [Death("a", at=0.205, back=0.505)])
    assert 29 <= world.score.outcomes["failed"] <= 32
    assert sum(world.score.outcomes.values()) == 100


class PingPong(ByRule):
    """Notes where each request went."""

    trips: ClassVar[Counter[int]] = Counter()

    def sent(self, request, server, *, now):
        super().sent(request, server, now=now)
        self.trips[request.id] += 1


def test_servers_that_believe_each_other_free_do_not_play_ping_pong():
    PingPong.trips = Counter()
    world = servers(PingPong, "ab", reports=ReportTerms(liars=frozenset("ab")))
    arrivals = [("ab"[i % 2], Request(i, "m", 0.001 * i, 0.001 * i + 0.05)) for i in range(300)]
    world.run(arrivals)
    assert max(PingPong.trips.values()) <= 2
    assert sum(world.score.outcomes.values()) == 300


def test_a_liar_costs_little():
    def goodput(**options):
        world = servers(names="abcd", **options)
        world.run(burst("a", 800, every=0.0025, slo=0.06))
        return world.score.goodput

    honest = goodput()
    lied = goodput(reports=ReportTerms(liars=frozenset("b")))
    assert lied > honest - 0.05


deaths = st.lists(
    st.builds(
        Death,
        st.sampled_from("abc"),
        st.floats(0.0, 0.3),
        st.floats(0.3, 0.4) | st.just(float("inf")),
        st.sampled_from((0.0, 0.05)),
    ),
    max_size=3,
    unique_by=lambda death: death.server,
)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from((Alone, OnRefusal, ByRule, Oracle)),
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0.0, 0.4), st.floats(0.005, 0.1)), max_size=60
    ),
    deaths,
    st.sampled_from((0.0, 0.0003, 0.01)),
    st.sampled_from((ReportTerms(), ReportTerms(0.2, 0.5, frozenset("b")))),
)
def test_every_request_has_one_outcome(routing, requests, deaths, hop, reports):
    ended: list[int] = []
    world = servers(
        routing,
        check=True,
        hop=HopTerms(hop),
        reports=reports,
        ended=lambda request, *_: ended.append(request.id),
    )
    arrivals = sorted(requests, key=lambda entry: entry[1])
    world.run(
        ((home, Request(i, "m", at, at + slo)) for i, (home, at, slo) in enumerate(arrivals)),
        deaths,
    )
    assert sorted(ended) == list(range(len(requests)))
    assert sum(world.score.outcomes.values()) == len(requests)
