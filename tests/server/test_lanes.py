"""Which cores models get: disjoint, fair, and refused by name where they do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.repository.settings import ModelSettings
from slacktide.server.lanes import LaneError, lay_out


def settings(**fields):
    return ModelSettings.model_validate(fields)


def cores_of(layout):
    return {lane.name: lane.cores for lane in layout.lanes}


def test_models_without_wishes_share_all_cores():
    layout = lay_out({"a": settings(), "b": settings()}, (0, 1, 2))
    assert cores_of(layout) == {"shared": (0, 1, 2)}
    assert layout.places == {"a": ("shared",), "b": ("shared",)}


def test_stated_cores_make_a_lane_of_its_own():
    layout = lay_out({"a": settings(cores=1), "b": settings()}, (0, 1, 2))
    assert cores_of(layout) == {"a": (0,), "shared": (1, 2)}


def test_a_named_lane_is_shared_by_those_who_name_it():
    layout = lay_out(
        {"a": settings(lane="video", cores=2), "b": settings(lane="video", cores=2)}, (0, 1, 2)
    )
    assert cores_of(layout) == {"video": (0, 1)}
    assert layout.places == {"a": ("video",), "b": ("video",)}


def test_models_that_disagree_on_a_lane_are_told_who_with():
    with pytest.raises(LaneError, match="than model 'a'") as caught:
        lay_out({"a": settings(lane="v", cores=1), "b": settings(lane="v", cores=2)}, (0, 1, 2))
    assert caught.value.model == "b"


def test_replicas_of_a_model_with_cores_divide_them():
    layout = lay_out({"a": settings(cores=4, replicas=2)}, (0, 1, 2, 3))
    assert cores_of(layout) == {"a-0": (0, 1), "a-1": (2, 3)}


def test_shared_cores_are_split_for_the_model_with_most_replicas():
    layout = lay_out({"a": settings(replicas=2), "b": settings(), "c": settings()}, (0, 1, 2))
    assert cores_of(layout) == {"shared-0": (0,), "shared-1": (1, 2)}
    assert layout.places["a"] == ("shared-0", "shared-1")
    assert {layout.places["b"], layout.places["c"]} == {("shared-0",), ("shared-1",)}


def test_more_replicas_than_cores_get_a_core_each_at_most():
    layout = lay_out({"a": settings(replicas=8)}, (0, 1))
    assert cores_of(layout) == {"shared-0": (0,), "shared-1": (1,)}
    assert layout.places["a"] == ("shared-0", "shared-1")


def test_no_cores_left_is_an_error():
    with pytest.raises(LaneError, match="no core is left"):
        lay_out({"a": settings(cores=2), "b": settings()}, (0, 1))
    with pytest.raises(LaneError, match="wants 3, and 2 of 2"):
        lay_out({"a": settings(cores={"min": 3, "max": 4})}, (0, 1))


def test_accelerator_models_take_no_cores():
    layout = lay_out({"a": settings(device="cuda:1"), "b": settings()}, (0, 1))
    assert [(lane.name, lane.device, lane.cores) for lane in layout.lanes] == [
        ("cuda-1", "cuda:1", ()),
        ("shared", "cpu", (0, 1)),
    ]


@given(
    wishes=st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.none() | st.integers(1, 4), st.integers(1, 3)),
        min_size=1,
    ),
    count=st.integers(1, 12),
)
def test_lanes_are_disjoint_and_every_model_has_one(wishes, count):
    models = {
        name: settings(replicas=replicas, **({} if cores is None else {"cores": cores}))
        for name, (cores, replicas) in wishes.items()
    }
    refused = None
    try:
        layout = lay_out(models, tuple(range(count)))
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
        assert layout.places[name]
        assert set(layout.places[name]) <= names
