"""A family's variants: which are worth serving, which serves first, and how long each takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, any_size
from slacktide.models.families import (
    PreparedPool,
    accuracies,
    at_first,
    check_alike,
    first_route,
    worth_serving,
)
from slacktide.models.learnt import times_of
from slacktide.models.profile_cache import ProfiledModel
from slacktide.models.repository.errors import InterfaceMismatchError
from slacktide.models.repository.interface import check_interface
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.variants import VariantSettings
from slacktide.planning.variants import Family, FamilyVariant
from slacktide.profiles import ClassedTimes, LatencyTable, ProfileRecord
from slacktide.profiles.latency_fit import SizeTime

NOTHING: Any = None
IMAGE = TensorSpec("image", Datatype.UINT8, (-1, -1, -1, 3))
SCORES = TensorSpec("scores", Datatype.FP32, (-1, 10))
INTERFACE = ModelInterface((IMAGE,), (SCORES,), 8)
TABLE = LatencyTable.linear(0.001, 0.004, 8, spread=1.2)


def definition(variants: VariantSettings | None = None, file: str = "a.onnx") -> ModelDefinition:
    settings = ModelSettings(file=file, variants=variants)
    return ModelDefinition("m", "1", Path("m/1"), Path("m/1") / file, settings, {})


def known(sides: tuple[int, ...] = (128, 256)) -> ProfiledModel:
    """A profile at 512 pixels and at others, of which each takes as long as it has pixels."""
    sizes = tuple(
        SizeTime(1, 1, (side / 512) ** 2, 0.005 * (side / 512) ** 2, ((side, side, 3),))
        for side in sides
    )
    return ProfiledModel(ProfileRecord(TABLE, {"image": (512, 512, 3)}, sizes=sizes), INTERFACE)


# ── accuracy ─────────────────────────────────────────────────────────────────────────────────────


def test_stated_accuracy_wins_over_measured_and_measured_over_the_order() -> None:
    settings = VariantSettings(sizes=(1 << 7, 1 << 8, 1 << 9), accuracy={"128": 0.3})
    accuracy, notes = accuracies(settings, {"128": 0.9, "512": 0.7})
    assert accuracy == {"128": 0.3, "256": pytest.approx(0.5), "512": 0.7}
    (note,) = notes
    assert "the accuracy of 256 is unknown" in note
    assert accuracies(settings, {"256": 0.4, "512": 0.7})[1] == []


def test_without_any_accuracy_variants_are_the_better_the_later_they_are_listed() -> None:
    accuracy, notes = accuracies(VariantSettings(files={"a": "a.onnx", "b": "b.onnx"}), {})
    assert accuracy == {"a": pytest.approx(1 / 3), "b": pytest.approx(2 / 3)}
    assert "the accuracy of a, b is unknown" in notes[0]


def test_a_larger_variant_that_is_no_more_accurate_is_dropped_with_a_note() -> None:
    kept, notes = worth_serving({"a": 0.5, "b": 0.5, "c": 0.6, "d": 0.55})
    assert kept == ("a", "c")
    assert notes[0] == (
        "variants: 'b' is not served: its accuracy, 0.5, is not above that of the smaller 'a', 0.5"
    )
    assert len(notes) == 2


def test_a_variant_is_dropped_only_where_it_is_worse_beyond_the_interval() -> None:
    measured = {"a": 0.5, "b": 0.49, "c": 0.4, "d": 0.45}
    apart = {("b", "a"): (-0.03, 0.01), ("c", "a"): (-0.2, -0.01), ("c", "b"): (-0.1, 0.0)}
    kept, notes = worth_serving(measured, apart)
    assert kept == ("a", "b")
    assert notes == [
        "variants: 'c' is not served: its accuracy, 0.4, is below that of the smaller 'a', 0.5, "
        "by 0.01 to 0.2 (95 %)",
        "variants: 'd' is not served: its accuracy, 0.45, is not above that of the smaller 'a', "
        "0.5",
    ]


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.data())
def test_kept_variants_rise_in_accuracy_and_end_with_the_best(
    values: list[float], data: Any
) -> None:
    names = [f"v{i}" for i in range(len(values))]
    stated = data.draw(st.sets(st.sampled_from(names)))
    settings = VariantSettings(
        files={name: f"{name}.onnx" for name in names},
        accuracy={name: value for name, value in zip(names, values, strict=True) if name in stated},
    )
    accuracy, notes = accuracies(settings, {})
    assert list(accuracy) == names
    assert all(0.0 < value <= 1.0 for value in accuracy.values())
    assert bool(notes) == (stated != set(names))
    kept, dropped = worth_serving(accuracy)
    rising = [accuracy[name] for name in kept]
    assert rising == sorted(set(rising))
    assert rising[-1] == max(accuracy.values())
    assert kept[0] == names[0]
    assert len(kept) + len(dropped) == len(names)


# ── times ────────────────────────────────────────────────────────────────────────────────────────


def test_a_size_that_was_measured_takes_as_long_as_it_did_and_others_as_the_law_says() -> None:
    profile = known((128, 256))
    settings = ModelSettings(variants=VariantSettings(sizes=(128, 256, 384, 512)))
    times = {side: times_of(profile, settings, side) for side in (128, 256, 384, 512)}
    assert all(isinstance(time, ClassedTimes) for time in times.values())
    for side in (128, 256, 512):
        assert times[side].of(1, 1).expected == pytest.approx(0.005 * (side / 512) ** 2, rel=0.02)
    between = times[384].of(1, 1)
    assert between.expected == pytest.approx(0.005 * (384 / 512) ** 2, rel=0.1)
    assert times[512].of(8, 1).p99 == pytest.approx(TABLE.p99(8, 1), rel=0.02)


def test_each_size_learns_from_its_own_batches() -> None:
    profile, settings = known(), ModelSettings(variants=VariantSettings(sizes=(128, 512)))
    small, large = (times_of(profile, settings, side) for side in (128, 512))
    before = large.of(1, 1).expected
    for _ in range(100):
        small.observe(0.001, (), 1, 1)
    assert small.of(1, 1).expected == pytest.approx(0.001, rel=0.05)
    assert large.of(1, 1).expected == before


# ── which serves first ───────────────────────────────────────────────────────────────────────────


def pools(*p99_s: float) -> list[PreparedPool]:
    times_of_pools = [ClassedTimes(LatencyTable.flat(seconds, 1)) for seconds in p99_s]
    return [PreparedPool(NOTHING, NOTHING, NOTHING, times) for times in times_of_pools]


@pytest.mark.parametrize(("slo", "chosen"), [(None, 2), (1.0, 2), (0.1, 1), (0.05, 0), (0.001, 0)])
def test_at_first_the_most_accurate_serves_that_takes_half_of_the_objective(
    slo: float | None, chosen: int
) -> None:
    assert first_route(pools(0.01, 0.04, 0.2), 1, slo) == chosen


def family(*nbytes: int, resident: int = 5, memory: int | None = None) -> Family:
    variants = [FamilyVariant(f"v{i}", (i + 1) / 10, nbytes=size) for i, size in enumerate(nbytes)]
    return Family(tuple(variants), resident=resident, memory=memory)


def test_sizes_are_all_loaded_and_files_as_far_as_a_lane_has_room() -> None:
    assert at_first(family(0, 0, 0), 1) == (True, True, True)
    assert at_first(family(9, 9, 9, 9), 2) == (True, True, True, True)
    assert at_first(family(9, 9, 9, 9, resident=2), 2) == (True, False, True, False)
    assert at_first(family(9, 9, 9, 9, resident=3), 2) == (True, True, True, False)
    assert at_first(family(9, 9, 9, 9, memory=20), 3) == (True, False, False, True)
    assert at_first(family(9, 9, 99, memory=20), 2) == (False, False, True), "one serves anyway"


# ── files that differ ────────────────────────────────────────────────────────────────────────────


def test_files_may_differ_in_the_size_of_their_image_only() -> None:
    small = replace(INTERFACE, inputs=(replace(IMAGE, shape=(-1, 224, 224, 3)),))
    large = replace(INTERFACE, inputs=(replace(IMAGE, shape=(-1, 320, 320, 3)),), max_batch=4)
    check_alike(definition(), small, definition(), large)
    assert any_size(small) == INTERFACE
    other = replace(small, outputs=(replace(SCORES, shape=(-1, 11)),))
    with pytest.raises(InterfaceMismatchError) as caught:
        check_alike(definition(file="b.onnx"), other, definition(), large)
    assert str(caught.value) == (
        "m/1/b.onnx: outputs: expected 'scores' FP32 [-1, 10] as in m/1/a.onnx, got 'scores' FP32 "
        "[-1, 11]"
    )
    gray = replace(INTERFACE, inputs=(replace(IMAGE, shape=(-1, 320, 320, 1)),))
    with pytest.raises(InterfaceMismatchError, match=r"b\.onnx: inputs: expected 'image' UINT8"):
        check_alike(definition(file="b.onnx"), gray, definition(), large)
    with pytest.raises(InterfaceMismatchError, match="batch axis: expected one as"):
        check_alike(definition(), replace(large, max_batch=0), definition(), large)


def test_sizes_need_a_free_image_input() -> None:
    sized = definition(VariantSettings(sizes=(128,)))
    assert check_interface(sized, INTERFACE) == ()
    fixed = replace(INTERFACE, inputs=(replace(IMAGE, shape=(-1, 224, 224, 3)),))
    text = "m/slacktide.yaml: variants.sizes: images of 'image' are always 224 × 224"
    with pytest.raises(InterfaceMismatchError) as caught:
        check_interface(sized, fixed)
    assert str(caught.value) == text
    with pytest.raises(InterfaceMismatchError, match="the model has no image input"):
        check_interface(sized, replace(INTERFACE, inputs=(SCORES,)))
