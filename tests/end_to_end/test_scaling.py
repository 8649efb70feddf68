"""Cores and replicas that change while real workers serve real clients.

Profiles are stated, so that what planners decide does not depend on the machine: every batch of
`matmul` is said to take twenty seconds on one core and half as long on two. It takes a millisecond,
so deadlines between the two leave a busy machine seconds in which to confirm a growth.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from slacktide.domain import PlanChanged
from slacktide.engine import EngineSettings
from slacktide.executors.cores import available_cores
from slacktide.executors.onnx_file import OnnxFile
from slacktide.lab.replay import replay
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import Repository
from slacktide.models.resize_tracker import ResizeOutcome
from slacktide.profiles import LatencyTable, ProfileRecord
from slacktide.recording import Call, Recording
from slacktide.wire.errors import ControlError

SECONDS = 20.0
TIGHT = round(0.7e6 * SECONDS)
"""µs that one core is too slow for."""
EAGER = "cores: {min: 1, max: 2}\nscaling: {name: vertical, period: 20ms, patience: 0s}\n"
BASE = len(available_cores())

pytestmark = pytest.mark.skipif(BASE < 2, reason="needs two cores to scale between")


def state_profile(zoo: Any, name: str = "matmul") -> None:
    """Store a profile of what the module says, as if it had been measured."""
    (definition,) = Repository(zoo.root).read(name)
    file = OnnxFile(definition.model_path, definition.data_root)
    interface = file.interface(definition.settings.max_batch)
    assert interface is not None
    table = LatencyTable.linear(SECONDS, 0.0, interface.max_batch, cores=(1, 2))
    record = ProfileRecord(table, {"x": (4,)})

    document = {
        "record": record.to_dict(),
        "interface": interface.to_dict(),
        "dependence": "",
    }
    ProfileStore().save(definition, ProfileCache._key(definition), document)


def cores_of(lane: str) -> Callable[[Any], int]:
    """Cores that a lane has, confirmed."""

    def read(app: Any) -> int:
        return len(app.engine.state.lanes[lane].cores)

    return read


def confirmed(app: Any) -> int:
    """Resizes that ended with what was asked for."""
    outcomes: Counter[ResizeOutcome] = app.driver.replicas.resizes.outcomes
    return outcomes[ResizeOutcome.CONFIRMED]


def metric(house: Any, name: str, **labels: str) -> float:
    """One sample of the metrics page."""
    page = house.ask(house.server.metrics_port, "GET", "/metrics").body.decode()
    wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
    match = re.search(rf"^{name}{re.escape(f'{{{wanted}}}') if wanted else ''} (\S+)$", page, re.M)
    assert match is not None, f"no {name}{labels} in {page}"
    return float(match[1])


@pytest.mark.slow
def test_a_tight_deadline_grows_the_lane_and_idleness_gives_the_core_back(
    zoo: Any, serve: Any
) -> None:
    zoo.matmul(settings=f"{EAGER}max_batch: 4\n")
    state_profile(zoo)
    with serve(zoo) as house:
        assert house.look(cores_of("matmul")) == 1
        assert len(os.sched_getaffinity(house.worker("matmul"))) == 1
        assert metric(house, "slacktide_lane_cores", lane="matmul") == 1
        with tritonclient.http.InferenceServerClient(house.http) as client:
            tensor = tritonclient.http.InferInput("x", [1, 4], "FP32")
            tensor.set_data_from_numpy(house.WEIGHT[:1, :1].repeat(4, axis=1))
            client.infer("matmul", [tensor], timeout=TIGHT)
        assert metric(house, "slacktide_resizes_total", outcome="confirmed") >= 1
        # It has grown for it, and shrinks again once its planner has looked at the empty queue.
        house.until(lambda app: cores_of("matmul")(app) == 1, "the core is given back")
        assert len(os.sched_getaffinity(house.worker("matmul"))) == 1
        assert metric(house, "slacktide_resizes_total", outcome="confirmed") >= 2
        assert metric(house, "slacktide_resizes_total", outcome="refused") == 0
        assert metric(house, "slacktide_target_cores", model="matmul") == 1
        assert metric(house, "slacktide_plan_reason", model="matmul", reason="deadlines") == 1
        assert metric(house, "slacktide_lane_core_seconds_total", lane="matmul") > 0
        threads = [
            metric(house, "slacktide_session_bytes", model="matmul", version="1", threads=n)
            for n in "12"
        ]
        assert min(threads) >= 0
        assert house.counts("matmul") == {"on_time": 1}


def test_no_request_is_lost_over_many_resizes(zoo: Any, serve: Any) -> None:
    """The plan changes as fast as the workers confirm, and clients ask all the while."""
    zoo.matmul(settings="cores: 2\n")
    with serve(zoo) as house:
        statuses: list[int] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                statuses.append(house.infer("matmul", house.matmul_call()).status)

        crowd = [house.spawn(ask) for _ in range(3)]
        for turn in range(40):
            count = 1 + turn % 2
            house.look(lambda app, count=count: _have(app, count))
            house.until(
                lambda app, count=count: cores_of("matmul")(app) == count, f"it has {count}"
            )
            assert len(os.sched_getaffinity(house.worker("matmul"))) == count
        stop.set()
        for pending in crowd:
            pending.result()
        assert set(statuses) == {200}
        assert len(statuses) >= 3
        assert metric(house, "slacktide_resizes_total", outcome="confirmed") >= 40
        assert house.counts("matmul") == {"on_time": len(statuses)}


@pytest.mark.slow
def test_plans_are_replayed_without_planners(
    zoo: Any, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo.matmul(settings=f"{EAGER}max_batch: 4\n")
    state_profile(zoo)
    path = tmp_path / "server.rec"
    # What is taken to hang must be what the header says, so it is set before the engine is made.
    patient = EngineSettings(hang_floor=30.0)
    monkeypatch.setattr("slacktide.server.app.EngineSettings", lambda: patient)
    with serve(zoo, hang_floor=30.0, record=path) as house:
        # A busy machine may take a growth back before it is confirmed: then it is asked for again.
        while house.look(confirmed) < 1:
            house.infer("matmul", house.matmul_call(timeout=TIGHT))
        house.until(lambda app: confirmed(app) >= 2, "growing and shrinking are confirmed")
        house.until(lambda app: cores_of("matmul")(app) == 1, "the core is given back")
    recording = Recording(path)
    assert replay(recording).difference is None
    event_names = [
        type(event).__name__
        for line in recording.lines()
        if isinstance(line.record, Call)
        for event in line.record.events
    ]
    assert event_names.count("LaneResized") >= 2
    assert event_names.count("PlanChanged") >= 3


def test_a_server_that_drains_while_it_resizes_answers_what_is_in_flight(
    zoo: Any, serve: Any
) -> None:
    zoo.slow("matmul", turns=20000, settings="cores: 2\nmax_batch: 1\n")
    with serve(zoo) as house:
        answers = [house.later("matmul", house.slow_call()) for _ in range(3)]
        house.queued("matmul", 2)
        for count in (1, 2, 1):
            house.look(lambda app, count=count: _have(app, count))
        house.server.call(lambda app: app.drain())
        assert [answer.result().status for answer in answers] == [200, 200, 200]
        assert cores_of("matmul")(house.server.app) == 1


def _have(app: Any, count: int) -> None:
    """Plan so many cores for every lane."""
    plan = app.models._plan_builder.plan()
    lanes = tuple(replace(lane, cores=lane.cores[:count]) for lane in plan.lanes)
    app.driver.post(PlanChanged(replace(plan, lanes=lanes)))
    app.driver.flush()


def test_wishes_beyond_the_machine_are_refused_by_name_or_cut(zoo: Any, serve: Any) -> None:
    wanted = 64 * BASE
    zoo.matmul()
    zoo.matmul("large", settings=f"cores: {{min: 1, max: {wanted}}}\n")
    expected = f"cores.max: needs {wanted} cores, but the server may use only {BASE}"
    with serve(zoo, control_port=0) as house:
        house.good()
        assert expected in house.index()["large"]["reason"]
        with (
            tritonclient.http.InferenceServerClient(house.control) as client,
            pytest.raises(InferenceServerException, match="but the server may use only"),
        ):
            client.load_model("large")
    with serve(zoo, allow_fewer_cores=True) as house:
        house.good()
        assert house.infer("large", house.matmul_call()).status == 200
        assert house.look(lambda app: app.scaling.models["large"].limits.cores_max) == BASE


def test_replicas_come_and_go_and_survive_a_reload(zoo: Any, serve: Any) -> None:
    two = "cores: 1\nreplicas: {min: 1, max: 2}\nscaling: {name: static, replicas: 2}\n"
    zoo.matmul(settings=two)
    with serve(zoo) as house:
        house.until(_replicas(2), "the second replica is up")
        assert metric(house, "slacktide_target_replicas", model="matmul") == 2
        zoo.matmul(scale=2.0, settings=two)
        house.server.load("matmul")
        assert house.infer("matmul", house.matmul_call()).status == 200
        house.until(_replicas(2), "both are there after the reload")
        zoo.matmul(settings=two.replace("replicas: 2}", "replicas: 1}"))
        house.server.load("matmul")
        house.until(_replicas(1), "one has gone")
        house.good()
        house.server.unload("matmul")
        assert house.look(lambda app: dict(app.engine.state.lanes)) == {}
        assert house.look(lambda app: app.scaling.status(app.engine.snapshot())) == {}


def _replicas(count: int) -> Callable[[Any], bool]:
    def ready(app: Any) -> bool:
        versions = app.catalog.all()
        return len(versions) == 1 and len(versions[0].pool.replicas_up) == count

    return ready


def test_models_that_scale_share_the_machine_and_say_what_they_lack(zoo: Any, serve: Any) -> None:
    """Together they may have twice what there is: nobody gets a core that another has."""
    greedy = f"cores: {{min: 1, max: {BASE}}}\nscaling: static\n"
    zoo.matmul(settings=greedy)
    zoo.matmul("other", settings=greedy)
    with serve(zoo) as house:
        house.until(
            lambda app: all(lane.cores == lane.target for lane in app.engine.state.lanes.values()),
            "all resizes are confirmed",
        )

        def held(app: Any) -> list[int]:
            return sorted(core for lane in app.engine.state.lanes.values() for core in lane.cores)

        assert house.look(held) == list(available_cores())
        lacking = [
            metric(house, "slacktide_plan_condition", model=name, condition="cores_short")
            for name in ("matmul", "other")
        ]
        assert lacking == [1, 1]
        house.good()


def test_a_worker_killed_while_it_grows_is_replaced_with_what_was_planned(
    zoo: Any, serve: Any
) -> None:
    zoo.matmul(settings=f"cores: {{min: 1, max: {BASE}}}\nscaling: static\n")
    with serve(zoo) as house:
        house.until(lambda app: cores_of("matmul")(app) == BASE, "it has grown")
        pid = house.worker("matmul")
        os.kill(pid, 9)
        house.until(
            lambda app: app.catalog.find("matmul", None).counters.crashes == 1, "it is lost"
        )
        house.until(_replicas(1), "it is replaced")
        house.good()
        assert len(os.sched_getaffinity(house.worker("matmul"))) == BASE


def test_models_on_one_lane_that_disagree_are_told(zoo: Any, serve: Any) -> None:
    zoo.matmul(settings="lane: one\ncores: {min: 1, max: 2}\n")
    zoo.matmul("other", settings="lane: one\ncores: {min: 1, max: 2}\nscaling: static\n")
    with serve(zoo) as house:
        house.good()
        assert "differs from model" in house.index()["other"]["reason"]
        with pytest.raises(ControlError, match="lane 'one'"):
            house.server.load("other")
