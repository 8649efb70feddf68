"""The forwarding rule: which peer gets a request, if any."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from slacktide.peers import ForwardingRule, LoadReport, ModelLoad, PeerLoads
from slacktide.peers.rule import SAMPLE

HOME = ModelLoad("m", wait_s=0.030, alone_s=0.008, row_s=0.004)


def loads_of(waits: dict[str, float], rtt_s: float = 0.0) -> PeerLoads:
    loads = PeerLoads()
    for peer, wait_s in waits.items():
        loads.joined(peer, now=0.0)
        loads.measured(peer, rtt_s=rtt_s, bytes_per_s=1e6)
        load = ModelLoad("m", wait_s, 0.008, 0.004)
        loads.reported(peer, LoadReport((load,), 0), now=0.5 * rtt_s)
    return loads


def rule_of(loads: PeerLoads) -> ForwardingRule:
    return ForwardingRule(loads, random.Random(1))


def test_a_request_goes_to_the_peer_that_can_start_it_sooner():
    rule = rule_of(loads_of({"a": 0.020, "b": 0.010}))
    assert rule.on_arrival(HOME, 1, 0, 0.05, now=0.0) == "b"


def test_a_request_stays_at_home_within_the_margin():
    rule = rule_of(loads_of({"a": 0.0295}))
    assert rule.on_arrival(HOME, 1, 0, 0.05, now=0.0) is None
    assert rule.on_arrival(HOME, 1, 0, 0.05, now=0.001) == "a"  # the report has aged


def test_round_trip_and_transfer_count():
    assert rule_of(loads_of({"a": 0.0}, 0.020)).on_arrival(HOME, 1, 0, 0.05, now=0.010) == "a"
    assert rule_of(loads_of({"a": 0.0}, 0.030)).on_arrival(HOME, 1, 0, 0.05, now=0.015) is None
    rule = rule_of(loads_of({"a": 0.0}))
    assert rule.on_arrival(HOME, 1, 20_000, 0.05, now=0.0) == "a"
    assert rule.on_arrival(HOME, 1, 30_000, 0.05, now=0.0) is None


def test_where_others_send_work_a_peer_must_be_clearly_sooner_unless_time_is_short_at_home():
    loads = loads_of({"a": 0.030})
    for i in range(1, 40):  # its wait does not fall
        loads.reported("a", LoadReport((ModelLoad("m", 0.030, 0.008, 0.004),), 0), now=0.1 * i)
    rule, now = rule_of(loads), 3.94
    assert loads.doubt("a", "m", now=now) > 0.03
    assert loads.answer_in("a", "m", 1, 0, now=now) < 0.040
    home = ModelLoad("m", wait_s=0.040, alone_s=0.008, row_s=0.004)
    assert rule.on_arrival(home, 1, 0, 0.10, now=now) is None
    assert rule.on_arrival(home, 1, 0, 0.05, now=now) == "a"
    assert loads.doubt("a", "m", now=4.2) == 0.0  # no news for two intervals


def test_a_refused_request_goes_where_there_is_time_and_not_twice_to_one_peer():
    rule = rule_of(loads_of({"a": 0.030, "b": 0.031}))
    assert rule.on_refusal("m", 1, 0, 0.040, now=0.0) == "a"
    assert rule.on_refusal("m", 1, 0, 0.040, now=0.0, tried={"a"}) == "b"
    assert rule.on_refusal("m", 1, 0, 0.040, now=0.0, tried=("a", "b")) is None
    assert rule.on_refusal("m", 1, 0, 0.030, now=0.0) is None
    assert rule.on_refusal("other", 1, 0, 0.040, now=0.0) is None


def test_of_many_peers_some_are_drawn_and_every_peer_is_drawn():
    rule = rule_of(loads_of({f"p{i}": 0.001 * i for i in range(10)}))
    chosen = {rule.on_arrival(HOME, 1, 0, 0.05, now=0.0) for _ in range(400)}
    assert chosen == {f"p{i}" for i in range(10 - SAMPLE + 1)}  # the others are never the soonest


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
