"""Which cores models get: disjoint, fair, and refused by name where they do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Deployment, ModelWindow, Plan, PoolId, Timetable
from slacktide.models.core_layout import LaneError, assign_lanes
from slacktide.models.repository.settings import ModelSettings
from slacktide.planning.scaling.view import ScalingLimits


def settings(**fields):
    return ModelSettings.model_validate(fields)


def cores_of(layout):
    return {lane.name: lane.cores for lane in layout.lanes}


def test_models_without_wishes_share_all_cores():
    layout = assign_lanes({"a": settings(), "b": settings()}, (0, 1, 2))
    assert cores_of(layout) == {"shared": (0, 1, 2)}
    assert layout.lanes_of == {"a": ("shared",), "b": ("shared",)}


def test_stated_cores_make_a_lane_of_its_own():
    layout = assign_lanes({"a": settings(cores=1), "b": settings()}, (0, 1, 2))
    assert cores_of(layout) == {"a": (0,), "shared": (1, 2)}


def test_a_named_lane_is_shared_by_those_who_name_it():
    layout = assign_lanes(
        {"a": settings(lane="video", cores=2), "b": settings(lane="video", cores=2)}, (0, 1, 2)
    )
    assert cores_of(layout) == {"video": (0, 1)}
    assert layout.lanes_of == {"a": ("video",), "b": ("video",)}


def test_models_that_disagree_on_a_lane_are_told_who_with():
    with pytest.raises(LaneError, match="differs from model 'a'") as caught:
        assign_lanes(
            {"a": settings(lane="v", cores=1), "b": settings(lane="v", cores=2)}, (0, 1, 2)
        )
    assert caught.value.model == "b"


def test_replicas_of_a_model_with_cores_divide_them():
    layout = assign_lanes({"a": settings(cores=4, replicas=2)}, (0, 1, 2, 3))
    assert cores_of(layout) == {"a/0": (0, 1), "a/1": (2, 3)}


def test_shared_cores_are_split_for_the_model_with_most_replicas():
    layout = assign_lanes({"a": settings(replicas=2), "b": settings(), "c": settings()}, (0, 1, 2))
    assert cores_of(layout) == {"shared/0": (0,), "shared/1": (1, 2)}
    assert layout.lanes_of["a"] == ("shared/0", "shared/1")
    assert {layout.lanes_of["b"], layout.lanes_of["c"]} == {("shared/0",), ("shared/1",)}


def test_more_replicas_than_cores_get_a_core_each_at_most():
    layout = assign_lanes({"a": settings(replicas=8)}, (0, 1))
    assert cores_of(layout) == {"shared/0": (0,), "shared/1": (1,)}
    assert layout.lanes_of["a"] == ("shared/0", "shared/1")


def test_no_cores_left_is_an_error():
    with pytest.raises(LaneError, match="no core is left"):
        assign_lanes({"a": settings(cores=2), "b": settings()}, (0, 1))
    with pytest.raises(LaneError, match="cores: needs 2, but only 1 of 3 are free"):
        assign_lanes({"a": settings(cores=2), "b": settings(cores=2)}, (0, 1, 2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cores": 3}, "cores: needs 3 cores, but the server may use only 2"),
        (
            {"cores": {"min": 1, "max": 16}},
            "cores.max: needs 16 cores, but the server may use only 2",
        ),
        ({"cores": {"min": 3}}, "cores.min: needs 3 cores, but the server may use only 2"),
        (
            {"cores": {"min": 3, "max": 16}, "replicas": {"max": 4}, "scaling": "joint"},
            "cores.min: needs 3 cores, but the server may use only 2",
        ),
        (
            {"cores": 1, "replicas": {"max": 3}, "scaling": "static"},
            "replicas.max: needs 3 cores (3 replicas with 1), but the server may use only 2",
        ),
    ],
)
def test_wishes_beyond_the_machine_name_both_numbers_or_are_cut(fields, message):
    with pytest.raises(LaneError) as caught:
        assign_lanes({"a": settings(**fields)}, (4, 5))
    assert str(caught.value).startswith(message)
    layout = assign_lanes({"a": settings(**fields)}, (4, 5), allow_fewer=True)
    assert layout.warnings == {"a": message}
    assert {core for lane in layout.lanes for core in lane.cores} <= {4, 5}


def test_too_many_replicas_are_the_least_that_are_stated_and_no_flag_serves_them():
    fields = {"cores": 1, "replicas": {"min": 3, "max": 5}, "scaling": "horizontal"}
    message = "replicas.min: needs 3 cores (3 replicas with 1), but the server may use only 2"
    for allow_fewer in (False, True):
        with pytest.raises(LaneError) as caught:
            assign_lanes({"a": settings(**fields)}, (0, 1), allow_fewer=allow_fewer)
        assert str(caught.value) == message


def test_fewer_cores_than_replicas_are_an_error():
    with pytest.raises(LaneError, match="cores: expected at least 2, one per replica, got 1"):
        assign_lanes({"a": settings(cores=1, replicas=2)}, (0, 1))


def test_a_range_of_cores_starts_with_the_least_and_leaves_the_rest_to_grow_into():
    layout = assign_lanes(
        {"a": settings(cores={"min": 1, "max": 3}), "b": settings(cores=1)}, range(4)
    )
    assert cores_of(layout) == {"b": (0,), "a": (1,)}
    (lane,) = layout.scaled
    assert (lane.name, lane.models, lane.limits) == ("a", ("a",), ScalingLimits(1, 3))
    assert layout.spare == (1, 2, 3)
    assert layout.core_sets("a") == ((1,), (1, 2), (1, 2, 3))
    assert layout.core_sets("b") == ((0,),)


def test_a_model_is_measured_on_as_many_cores_as_it_may_have_whoever_has_them_now():
    layout = assign_lanes({"a": settings(cores={"min": 1, "max": 2}), "b": settings()}, (4, 5))
    assert layout.spare == (5,)
    assert layout.core_sets("a") == ((5,), (5, 4))


def test_a_fixed_number_of_replicas_divides_a_range_and_a_range_of_them_does_not():
    fields = {"cores": {"min": 1, "max": 5}, "replicas": 2}
    layout = assign_lanes({"a": settings(**fields)}, range(8))
    assert layout.scaled[0].limits == ScalingLimits(1, 2, 2, 2)
    assert cores_of(layout) == {"a/0": (0,), "a/1": (1,)}
    fields = {"cores": {"min": 2, "max": 5}, "replicas": {"max": 3}, "scaling": "static"}
    layout = assign_lanes({"a": settings(**fields)}, range(8))
    assert layout.scaled[0].limits == ScalingLimits(2, 5, 1, 3)
    assert cores_of(layout) == {"a": (0, 1)}


def test_models_that_state_nothing_get_what_the_scaled_could_not_use_but_at_least_one():
    layout = assign_lanes({"a": settings(cores={"min": 1, "max": 2}), "b": settings()}, range(4))
    assert cores_of(layout) == {"shared": (0, 1), "a": (2,)}
    assert layout.spare == (2, 3)
    layout = assign_lanes({"a": settings(cores={"min": 1}), "b": settings()}, range(4))
    assert cores_of(layout) == {"shared": (0,), "a": (1,)}
    assert layout.spare == (1, 2, 3)
    with pytest.raises(LaneError, match="no core is left: other models"):
        assign_lanes({"a": settings(cores={"min": 4}), "b": settings()}, range(4))


def test_models_on_one_lane_must_agree_on_how_it_is_scaled():
    both = {"cores": {"min": 1, "max": 2}, "lane": "v"}
    layout = assign_lanes({"a": settings(**both), "b": settings(**both)}, range(2))
    assert layout.scaled[0].models == ("a", "b")
    assert layout.lanes_of == {"a": ("v",), "b": ("v",)}
    with pytest.raises(LaneError, match="differs from model 'a' in cores, replicas or scaling"):
        assign_lanes({"a": settings(**both), "b": settings(**both, scaling="static")}, range(2))


def test_accelerator_models_take_no_cores():
    layout = assign_lanes({"a": settings(device="cuda:1"), "b": settings()}, (0, 1))
    assert [(lane.name, lane.device, lane.cores) for lane in layout.lanes] == [
        ("cuda:1", "cuda:1", ()),
        ("shared", "cpu", (0, 1)),
    ]


def test_a_device_is_one_lane_whatever_it_is_called_and_however_many_are_on_it():
    layout = assign_lanes(
        {
            "a": settings(device="cuda", replicas=2),
            "b": settings(device="cuda:0"),
            "c": settings(device="cuda:1"),
            "d": settings(providers=["tensorrt", "cuda"]),
        },
        (0, 1),
    )
    assert [(lane.name, lane.device) for lane in layout.lanes] == [
        ("cuda:0", "cuda:0"),
        ("cuda:1", "cuda:1"),
    ]
    assert layout.lanes_of == {
        "a": ("cuda:0",),
        "b": ("cuda:0",),
        "c": ("cuda:1",),
        "d": ("cuda:0",),
    }
    assert layout.core_sets("a") == ((),)


def test_no_name_of_a_model_is_that_of_a_lane_of_another_kind():
    models = {
        "cuda": settings(cores=1),
        "gpu": settings(device="cuda"),
        "m": settings(cores=2, replicas=2),
        "m-0": settings(cores=1),
        "shared": settings(cores=1),
        "shared-0": settings(cores=1),
        "x": settings(replicas=2),
    }
    layout = assign_lanes(models, range(9))
    names = [lane.name for lane in layout.lanes]
    assert len(set(names)) == len(names)
    deployments = [
        Deployment(PoolId(model, "1"), lane) for model in models for lane in layout.lanes_of[model]
    ]
    plan = Plan(layout.lanes, tuple(deployments))
    on: dict[str, set[str]] = {}
    for deployment in plan.deployments:
        on.setdefault(deployment.lane, set()).add(deployment.pool.model)
    assert [models for models in on.values() if len(models) > 1] == []
    assert layout.lanes_of["m"] == ("m/0", "m/1")
    assert layout.lanes_of["m-0"] == ("m-0",)
    assert layout.lanes_of["x"] == ("shared/0", "shared/1")
    alone = assign_lanes({"shared": settings(lane="shared", cores=1), "y": settings()}, range(2))
    assert alone.lanes_of["shared"] != alone.lanes_of["y"]


@given(
    wishes=st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(
            st.none() | st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)
        ),
        min_size=1,
    ),
    count=st.integers(1, 12),
    allow_fewer=st.booleans(),
)
def test_lanes_are_disjoint_and_every_model_has_one(wishes, count, allow_fewer):
    models = {}
    for name, (cores, replicas, more_cores, more_replicas) in wishes.items():
        fields = {"replicas": {"min": replicas, "max": replicas}}
        if cores is not None:
            fields["cores"] = {"min": cores, "max": cores + more_cores}
            fields["replicas"]["max"] += more_replicas
            if more_cores or more_replicas:
                fields["scaling"] = "static"
        models[name] = settings(**fields)
    refused = None
    try:
        layout = assign_lanes(models, tuple(range(count)), allow_fewer=allow_fewer)
    except LaneError as error:
        refused = error.model
    if refused is not None:
        assert refused in models
        return
    used = [core for lane in layout.lanes for core in lane.cores]
    assert len(used) == len(set(used))
    assert set(used) <= set(range(count))
    names = {lane.name for lane in layout.lanes}
    for name in models:
        assert layout.lanes_of[name]
        assert set(layout.lanes_of[name]) <= names
    of = {lane.name: set(lane.cores) for lane in layout.lanes}
    scaled = {model: lane for lane in layout.scaled for model in lane.models}
    for name in models:
        inside = [of[lane] <= set(layout.spare) for lane in layout.lanes_of[name]]
        assert all(inside) if name in scaled else not any(inside)
        if name in scaled:
            limits = scaled[name].limits
            assert {len(of[lane]) for lane in layout.lanes_of[name]} == {limits.cores_min}
            assert len(layout.lanes_of[name]) == limits.replicas_min


def test_a_lane_whose_cores_may_change_has_a_ladder_of_sessions_unless_one_is_enough():
    ladder = settings(cores={"min": 1, "max": 4})
    single = settings(cores={"min": 1, "max": 4}, sessions="one")
    layout = assign_lanes({"m": ladder, "n": single, "f": settings(cores=2)}, range(12))
    assert layout.scaled_lane("f") is None
    assert layout.scaled_lane("m").threads(ladder) == (1, 2, 4)
    assert layout.scaled_lane("n").threads(single) == (4,)
    assert [len(cores) for cores in layout.core_sets("n")] == [1, 2, 4]  # measured alike


def windowed(every="50ms", start="0ms", end="20ms", **fields):
    return settings(window={"every": every, "start": start, "end": end}, **fields)


def test_windows_make_a_timetable():
    models = {"a": windowed(start="30ms", end="50ms"), "b": windowed()}
    (lane,) = assign_lanes(models, (0, 1)).lanes
    assert lane.timetable == Timetable(
        0.05, (ModelWindow("b", 0.0, 0.02), ModelWindow("a", 0.03, 0.05))
    )
    (lane,) = assign_lanes({"a": settings()}, (0, 1)).lanes
    assert lane.timetable is None


@pytest.mark.parametrize(
    ("other", "blamed", "wrong"),
    [
        (windowed(start="10ms", end="30ms"), "b", "overlaps that of model 'a'"),
        (
            windowed(every="60ms", start="30ms", end="40ms"),
            "b",
            "window.every: expected that",
        ),
        (settings(), "b", "window: required, as model 'a'"),
        (windowed(start="30ms", end="40ms", cores={"min": 1, "max": 2}), "b", "a range"),
    ],
)
def test_windows_that_do_not_fit_together_are_refused(other, blamed, wrong):
    with pytest.raises(LaneError, match=wrong) as caught:
        assign_lanes({"a": windowed(), "b": other}, (0, 1, 2))
    assert caught.value.model == blamed


def test_a_window_that_cannot_be_names_its_key():
    with pytest.raises(ValueError, match="expected 'start' before 'end'"):
        windowed(start="30ms", end="20ms")
    with pytest.raises(ValueError, match="at most 'every'"):
        windowed(end="60ms")
