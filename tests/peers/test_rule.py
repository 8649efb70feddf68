"""The forwarding rule: which peer gets a request, if any."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from slacktide.peers import ForwardingRule, LoadReport, ModelLoad, PeerLoads

HOME = ModelLoad("m", wait_s=0.030, alone_s=0.008, row_s=0.004)


def loads_of(waits: dict[str, float], rtt_s: float = 0.0) -> PeerLoads:
    loads = PeerLoads()
    for peer, wait_s in waits.items():
        loads.joined(peer, now=0.0)
        loads.measured(peer, rtt_s=rtt_s, bytes_per_s=1e6)
        load = ModelLoad("m", wait_s, 0.008, 0.004)
        loads.reported(peer, LoadReport((load,), 0), now=0.5 * rtt_s)
    return loads


def rule_of(loads: PeerLoads, **options: float) -> ForwardingRule:
    return ForwardingRule(loads, random.Random(1), **options)  # type: ignore[arg-type]


def test_a_request_goes_to_the_peer_that_can_start_it_sooner():
    rule = rule_of(loads_of({"a": 0.020, "b": 0.010}))
    assert rule.on_arrival(HOME, 1, 0, 0.05, now=0.0) == "b"


def test_a_request_stays_at_home_within_the_margin():
    rule = rule_of(loads_of({"a": 0.0295}))
    assert rule.on_arrival(HOME, 1, 0, 0.05, now=0.0) is None
    assert rule.on_arrival(HOME, 1, 0, 0.05, now=0.001) == "a"  # the report has aged


def test_round_trip_and_transfer_count():
    assert rule_of(loads_of({"a": 0.0}, 0.020)).on_arrival(HOME, 1, 0, 0.05, now=0.010) == "a"
    assert rule_of(loads_of({"a": 0.0}, 0.028)).on_arrival(HOME, 1, 0, 0.05, now=0.014) is None
    rule = rule_of(loads_of({"a": 0.0}))
    assert rule.on_arrival(HOME, 1, 20_000, 0.05, now=0.0) == "a"
    assert rule.on_arrival(HOME, 1, 30_000, 0.05, now=0.0) is None


def test_no_peer_is_looked_at_before_the_part_theta_of_the_budget():
    rule = rule_of(loads_of({"a": 0.0}), theta=0.5)
    assert rule.on_arrival(HOME, 1, 0, 0.070, now=0.0) is None
    assert rule.on_arrival(HOME, 1, 0, 0.050, now=0.0) == "a"


def test_a_refused_request_goes_where_there_is_time_and_not_twice_to_one_peer():
    rule = rule_of(loads_of({"a": 0.030, "b": 0.031}))
    assert rule.on_refusal("m", 1, 0, 0.040, now=0.0) == "a"
    assert rule.on_refusal("m", 1, 0, 0.040, now=0.0, tried={"a"}) == "b"
    assert rule.on_refusal("m", 1, 0, 0.040, now=0.0, tried=("a", "b")) is None
    assert rule.on_refusal("m", 1, 0, 0.030, now=0.0) is None
    assert rule.on_refusal("other", 1, 0, 0.040, now=0.0) is None


def test_of_many_peers_two_are_drawn_and_every_peer_is_drawn():
    rule = rule_of(loads_of({f"p{i}": 0.001 * i for i in range(16)}))
    chosen = {rule.on_arrival(HOME, 1, 0, 0.05, now=0.0) for _ in range(400)}
    assert chosen == {f"p{i}" for i in range(15)}  # p15 is never the sooner of two


waits = st.dictionaries(
    st.sampled_from("abcdef"), st.floats(0.0, 0.1) | st.just(math.inf), max_size=6
)


@given(waits, st.sets(st.sampled_from("abcdef")), st.floats(0.0, 0.1), st.integers(0, 50_000))
def test_only_peers_that_are_there_and_have_the_time_are_chosen(waits, gone, budget_s, nbytes):
    loads = loads_of(waits)
    for peer in gone:
        loads.left(peer)
    rule = rule_of(loads)
    for peer in (
        rule.on_arrival(HOME, 1, nbytes, budget_s, now=0.0),
        rule.on_refusal("m", 1, nbytes, budget_s, now=0.0),
    ):
        if peer is not None:
            assert peer in waits
            assert peer not in gone
            assert max(waits[peer], nbytes / 1e6) + 0.008 <= budget_s + 1e-9
