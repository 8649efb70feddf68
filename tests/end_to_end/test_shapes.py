"""A real server and a model with a free axis: each shape is learnt from its own requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc

from slacktide.domain import Request
from slacktide.profiles import ShapedTimes
from slacktide.server.app import App

LENGTHS = (400, 1600, 6400)


def times_of(app: App, model: str = "filter") -> Any:
    version = app.catalog.find(model, None)
    assert version is not None
    return version.pool.times


def request(length: int) -> Request:
    """One as the engine sees it."""
    return Request(0, "filter", 0.0, 1.0, signature=((1, length),))


def predicted(house: Any, length: int) -> list[float]:
    """Seconds of one and four rows of this length, p50 and p99."""
    asked = request(length)
    times = [house.look(lambda app, n=n: times_of(app).of(n, 1, (asked,))) for n in (1, 4)]
    return [seconds for time in times for seconds in (time.expected, time.p99)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("shapes") / "repository")
    zoo.filter(settings="max_batch: 4\n")
    zoo.filter("sure", settings="max_batch: 4\nscheduler: {name: slack, guarantee: p99}\n")
    zoo.matmul()
    with serve(zoo) as house:
        yield house


@pytest.fixture
def shaped(server: Any) -> Iterator[Any]:
    yield server
    server.settle()


def test_shapes_that_come_mixed_are_all_served_and_learnt(shaped: Any):
    house = shaped
    calls = [(n % 3 + 1, LENGTHS[n % len(LENGTHS)]) for n in range(60)]
    answers = [
        house.later("filter", house.filter_call(length, rows=rows, timeout=20_000_000))
        for rows, length in calls
    ]
    for (rows, length), answer in zip(calls, answers, strict=True):
        assert answer.result().status == 200, answer.result()
        assert answer.result().json["outputs"][0]["shape"] == [rows, 1, length]
    assert house.look(lambda app: isinstance(times_of(app), ShapedTimes))
    for length in LENGTHS:
        asked = request(length)
        assert house.look(lambda app, asked=asked: times_of(app).measured(asked))


def test_a_shape_that_does_not_fit_fails_once_and_is_refused_then(shaped: Any):
    house = shaped
    first = house.infer("filter", house.filter_call(40_003))
    assert first.status == 500
    assert first.json["reason"] == "runtime_error"
    second = house.infer("filter", house.filter_call(40_003))
    assert second.status == 400
    assert second.json["reason"] == "bad_input"
    assert "the model cannot run rows of shape [1, 40003]: " in second.error
    assert "Gather" in second.error
    assert house.infer("filter", house.filter_call(40_000)).status == 200


def test_under_a_guarantee_a_new_shape_is_refused_but_learnt_without_a_deadline(shaped: Any):
    house = shaped
    timed = house.filter_call(30_000, timeout=20_000_000)
    refused = house.infer("sure", timed)
    assert refused.status == 422
    assert refused.json["reason"] == "unmeasured"
    assert "no request of this shape has been timed" in refused.error
    client = tritonclient.grpc.InferenceServerClient(house.grpc)
    tensor = tritonclient.grpc.InferInput("x", [1, 1, 30_000], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1, 30_000), np.float32))
    with pytest.raises(tritonclient.grpc.InferenceServerException) as error:
        client.infer("sure", [tensor], timeout=20_000_000)
    assert error.value.status() == str(grpc.StatusCode.FAILED_PRECONDITION)
    client.close()
    for _ in range(2):  # the first run may have been a slow one
        assert house.infer("sure", house.filter_call(30_000)).status == 200
    assert house.infer("sure", timed).status == 200


@pytest.mark.slow
def test_shapes_by_the_thousand_push_out_each_other_and_not_those_in_use(shaped: Any):
    house = shaped
    for _ in range(10):
        assert house.infer("filter", house.filter_call(100, timeout=20_000_000)).status == 200
    lengths = [length for length in range(200, 2000) if length % 4 < 3][:1000]

    def some(part: int) -> set[int]:
        calls = [house.filter_call(length) for length in lengths[part::8]]
        return {house.infer("filter", call).status for call in calls}

    floods = [house.spawn(some, part) for part in range(8)]
    for _ in range(20):
        assert house.infer("filter", house.filter_call(100, timeout=20_000_000)).status == 200
    assert set().union(*(flood.result() for flood in floods)) == {200}
    shapes = house.look(lambda app: times_of(app).export()["shapes"])
    assert len(shapes) <= 64
    assert [[1, 100]] in [shape["signature"] for shape in shapes]


def test_another_model_on_the_lane_keeps_its_deadlines(shaped: Any):
    house = shaped

    def flood(part: int) -> None:
        for n in range(20):
            length = 50_000 + 4 * (20 * part + n)
            assert house.infer("filter", house.filter_call(length)).status == 200

    floods = [house.spawn(flood, part) for part in range(4)]
    for _ in range(50):
        answer = house.infer("matmul", house.matmul_call(timeout=10_000_000))
        assert answer.status == 200, answer
    for pending in floods:
        pending.result()


@pytest.fixture
def learnt(zoo: Any) -> Callable[[], Path]:
    """Where what was learnt lies."""

    def find() -> Path:
        (path,) = zoo.root.glob("*/1/profile.*.learnt.json")
        return path

    return find


def test_learnt_shapes_outlive_the_server(zoo: Any, serve: Callable[..., Any], learnt: Any):
    zoo.filter(settings="max_batch: 4\n")
    with serve(zoo) as house:
        for length in LENGTHS:
            for n in range(10):
                rows = 1 + n % 4
                assert house.infer("filter", house.filter_call(length, rows=rows)).status == 200
        before = [predicted(house, length) for length in LENGTHS]
        times = house.look(lambda app: times_of(app).export())
    assert learnt().stat().st_size < 100_000
    with serve(zoo) as house:
        assert house.look(lambda app: times_of(app).export()) == times
        # Predictions are published when they have moved noticeably; what is stored is the latest.
        after = [predicted(house, length) for length in LENGTHS]
        assert np.array(after) == pytest.approx(np.array(before), rel=0.15)
        answer = house.infer("filter", house.filter_call(LENGTHS[0], timeout=20_000_000))
        assert answer.status == 200
        assert house.look(lambda app: app.engine.state.request_table.counts["filter"].ended) == 1


def test_learnt_applications_and_speed_outlive_the_server(
    zoo: Any, serve: Callable[..., Any], learnt: Any
):
    zoo.spin(settings="max_batch: 8\n")

    def known(app: App) -> list[Any]:
        times = times_of(app, "spin")
        classes = times.classes(1)
        return [times.of(1, 1).p99, times.of(8, 1).p99, *classes.means, *classes.shares]

    with serve(zoo) as house:
        for _ in range(30):
            for application, turns in {"short": 20, "long": 1000}.items():
                call = house.spin_call(turns, application=application)
                assert house.infer("spin", call).status == 200
        house.until(lambda app: times_of(app, "spin").classes(1) is not None, "they differ")
        before = house.look(known)
        point = house.look(lambda app: times_of(app, "spin").point.export())
    assert learnt().name.startswith("profile.")
    with serve(zoo) as house:
        assert house.look(known) == pytest.approx(before, rel=0.15)
        assert house.look(lambda app: times_of(app, "spin").point.export()) == point


def test_it_is_written_on_unload_and_read_on_load(zoo: Any, serve: Callable[..., Any], learnt: Any):
    zoo.filter(settings="max_batch: 4\n")
    with serve(zoo, control_port=0) as house:
        for _ in range(3):
            assert house.infer("filter", house.filter_call(400)).status == 200
        before = house.look(lambda app: times_of(app).export())
        assert house.post("/v2/repository/models/filter/unload").status == 200
        assert learnt().exists()
        for _ in range(2):  # the second time while it serves
            assert house.post("/v2/repository/models/filter/load").status == 200
            assert house.look(lambda app: times_of(app).export()) == before


@pytest.mark.parametrize(
    "change",
    [
        "profile",
        "cut off",
        pytest.param("model", marks=pytest.mark.slow),
        pytest.param("of another kind", marks=pytest.mark.slow),
    ],
)
def test_learnt_times_that_no_longer_fit_do_not_count(
    zoo: Any, serve: Callable[..., Any], learnt: Any, change: str
):
    path = zoo.filter(settings="max_batch: 4\n")
    with serve(zoo) as house:
        assert house.infer("filter", house.filter_call(404)).status == 200
    stored = learnt()
    if change == "profile":
        (profile,) = set(stored.parent.glob("profile.*")) - {stored}
        profile.unlink()
    elif change == "model":
        path.write_bytes(path.read_bytes() + b"\x0a\x00")
    elif change == "cut off":
        stored.write_bytes(stored.read_bytes()[:-20])
    else:
        stored.write_text(stored.read_text().replace('"speed"', '"pace"'))
    with serve(zoo, measure=True) as house:
        asked = request(404)
        assert not house.look(lambda app: times_of(app).has_run(asked))
        assert house.infer("filter", house.filter_call(404)).status == 200


def test_a_model_of_which_no_row_runs_learns_from_its_requests(
    zoo: Any, serve: Callable[..., Any], learnt: Any
):
    zoo.filter(settings="max_batch: 4\ninputs: {x: {shape: [1, 403]}}\n")
    with serve(zoo) as house:
        assert house.look(lambda app: times_of(app).reference) == ()
        refused = house.infer("filter", house.filter_call(403, timeout=20_000_000))
        assert refused.status == 500
        for length in (400, 400, 404):
            answer = house.infer("filter", house.filter_call(length, timeout=20_000_000))
            assert answer.status == 200
        times = house.look(lambda app: times_of(app).export())
    assert learnt().exists()
    with serve(zoo) as house:
        assert house.look(lambda app: times_of(app).export()) == times
        assert house.look(lambda app: times_of(app).measured(request(400)))
        assert not house.look(lambda app: times_of(app).measured(request(403)))
