"""What others would do with the same question."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.planning.pipelines.questions import (
    EDGE,
    SERVER,
    TRAFFIC,
    at_random,
    configuration,
    question,
    times,
)

from slacktide.planning.lanes.best_fit import PlacedReplica
from slacktide.planning.pipelines.distribution import Placed, distribute
from slacktide.planning.pipelines.plans import DevicePlans
from slacktide.planning.pipelines.problem import (
    PlacementAnswer,
    PlacementQuestion,
    StageConfiguration,
)
from slacktide_papers.policies.placement_policies import distream, jellyfish, rim


def at_source(placed) -> list[int]:
    """By pipeline: stages there."""
    counts = []
    for stages in placed:
        count = sum(stage.device != "server" for stage in stages)
        assert all(stage.device != "server" for stage in stages[:count])
        counts.append(count)
    return counts


def replicas_of(query: PlacementQuestion, placed: Placed) -> tuple[PlacedReplica, ...]:
    return DevicePlans(query, PlacementAnswer(placed)).replicas


def drawn(query: PlacementQuestion, times: int = 200) -> np.ndarray:
    random = np.random.default_rng(1)
    return np.array([at_source(distream(query, random)) for _ in range(times)])


def test_distream_balances_devices_and_servers_in_expectation():
    query = question(replace(TRAFFIC, rate=60.0))
    counts = drawn(query)[:, 0]
    assert len(set(counts.tolist())) == 2
    assert max(counts) - min(counts) == 1
    # detector: 60 rows/s at 5.5 × 4 ms each in pairs; 1.32 lanes of one at the edge, .33 of eight
    edge = 60 * 4 * 0.0055
    level = next(u for u in np.arange(0, 2, 1e-4) if rest_on_server(u / edge) / 8 <= u)
    assert counts.mean() == pytest.approx(level / edge, abs=0.1)


def rest_on_server(share: float) -> float:
    return (1 - share) * 60 * 0.0055 + 240 * 0.009 / 8 + 120 * 0.017 / 8


def test_distream_gives_more_to_the_edge_where_servers_are_slow():
    query = question(TRAFFIC)
    slow = replace(query, devices=(replace(EDGE, kind="server"), replace(SERVER, kind="edge")))
    assert drawn(slow, 50).mean() > drawn(query, 50).mean() + 0.5


def test_rim_fills_the_edge_whatever_the_link():
    calm, busy = (question(replace(TRAFFIC, rate=rate)) for rate in (5.0, 90.0))
    assert at_source(rim(calm)) == [3]
    assert at_source(rim(busy)) == [1]
    assert at_source(rim(replace(busy, links=()))) == [1]
    two = question(*(replace(TRAFFIC, name=name, rate=40.0) for name in "ab"))
    assert at_source(rim(two)) == [2, 0]


def test_batches_are_static():
    for placed in (rim(question()), distream(question(), np.random.default_rng(1))):
        for at, stage in enumerate(placed[0]):
            assert stage.batch == (2 if not at else 8 if stage.device == "server" else 4)


def test_a_stage_stays_where_it_can_run():
    """The edge has not the memory for the second, a server no times for the first."""
    heavy = replace(
        TRAFFIC.stages[1], configurations=(replace(configuration(0.001, 0.001), weights=9e9),)
    )
    local = StageConfiguration(times(0.001, 0.001, {"edge": 1.0}))
    stages = (replace(TRAFFIC.stages[0], configurations=(local,)), heavy, TRAFFIC.stages[2])
    query = question(
        replace(TRAFFIC, rate=1.0, stages=stages), devices=(EDGE, replace(SERVER, memory=2e10))
    )
    for placed in (rim(query), distream(query, np.random.default_rng(1)), jellyfish(query)):
        assert at_source(placed) == [1]


def sized(bandwidths) -> PlacementQuestion:
    """A detector of three sizes that all share, at the end of links of their own."""
    configurations = tuple(
        replace(configuration(0.004 * f, 0.004 * f), accuracy=a, row_share=share)
        for f, a, share in ((0.4, 0.3, 0.25), (0.7, 0.5, 0.5), (1.0, 0.6, 1.0))
    )
    stages = [replace(TRAFFIC.stages[0], configurations=configurations, model="detector")]
    stages += [replace(stage, model=stage.name) for stage in TRAFFIC.stages[1:]]
    devices = tuple(replace(EDGE, name=f"e{k}") for k in range(len(bandwidths)))
    query = question(
        *(
            replace(TRAFFIC, name=f"p{k}", source=f"e{k}", slo=0.15, stages=tuple(stages))
            for k in range(len(bandwidths))
        ),
        links=(),
        devices=(*devices, SERVER),
    )
    link = question().links[0]
    return replace(
        query,
        links=tuple(
            replace(link, begin=f"e{k}", bandwidth=rate) for k, rate in enumerate(bandwidths)
        ),
    )


def test_jellyfish_sends_what_the_link_can_carry_in_time():
    placed = jellyfish(sized([40e6, 0.8e6]), detectors=2)
    assert [stage.device for stages in placed for stage in stages] == ["server"] * 6
    fast, slow = (stages[0] for stages in placed)
    assert fast.configuration > slow.configuration
    assert {stage.batch for stages in placed for stage in stages[1:]} == {8}


def test_jellyfish_has_as_many_of_each_model_as_detectors():
    query = sized([40e6] * 6)
    query = replace(
        query, pipelines=tuple(replace(pipeline, rate=60.0) for pipeline in query.pipelines)
    )
    placed = jellyfish(query, detectors=2)
    assert [sum(stages[at].replicas for stages in placed) for at in range(3)] == [2, 2, 2]


def test_replicas_are_spread_evenly_and_share_a_model():
    query = sized([40e6] * 6)
    placed = distribute(query)
    replicas = replicas_of(query, placed)
    assert {r.model for r in replicas} == {"detector", "brand", "plate"}
    for device in query.devices:
        on_device = [r for r in replicas if r.device == device.name]
        lanes = {(r.lane, r.model) for r in on_device}
        assert len(lanes) == len(on_device)
        assert all(0 <= r.lane < device.lanes for r in on_device)
    stages = [stage for r in replicas for stage in set(r.stages)]
    assert set(stages) == {(p.name, at) for p in query.pipelines for at in range(3)}
    on_server = [r.lane // SERVER.streams for r in replicas if r.device == "server"]
    assert abs(on_server.count(0) - on_server.count(1)) <= 1


@pytest.mark.parametrize("seed", range(30))
def test_every_baseline_answers_every_question(seed):
    query = at_random(np.random.default_rng(seed), configurations=3)
    for placed in (
        rim(query),
        distream(query, np.random.default_rng(seed)),
        jellyfish(query, seed=seed),
    ):
        assert len(placed[0]) == len(query.pipelines[0].stages)
        assert replicas_of(query, placed)
