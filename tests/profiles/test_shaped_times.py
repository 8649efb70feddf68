"""ShapedTimes: each input shape takes as long as it was seen to, or as the law over sizes says."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Request, Signature
from slacktide.profiles import BatchTimes, LatencyTable, ProfileError, ShapedTimes
from slacktide.profiles.latency_fit import SizeTime
from slacktide.profiles.shape_classes import MOST_CLASSES, ShapeSorting, apart
from slacktide.profiles.shaped_times import MEMORY, MOST_SHAPES
from slacktide.recording.layout import LayoutError
from slacktide.recording.times import export_times, load_times

REFERENCE: Signature = ((3, 100, 100),)
TABLE = LatencyTable.linear(0.004, 0.016, 8, cores=(1, 2), spread=1.3)


def square(side: int) -> Signature:
    return ((3, side, side),)


def of(signature: Signature, count: int = 1) -> tuple[Request, ...]:
    return tuple(Request(i, "m", 0.0, 1.0, signature=signature) for i in range(count))


def truth(signature: Signature, rows: int, cores: int = 1) -> float:
    """Linear in the area, with a fixed part."""
    size = signature[0][1] * signature[0][2] / 10_000
    return (0.004 + 0.016 * rows * size) / cores


def run(
    times: ShapedTimes,
    signature: Signature,
    batches: int,
    *,
    factor: float = 1.0,
    first: float = 1.0,
    seed: int = 0,
) -> None:
    """Batches of one to eight rows, 8 % scatter; the first takes `first` times as long."""
    rng = np.random.default_rng(seed)
    for number in range(batches):
        rows = int(rng.integers(1, 9))
        scatter = factor * float(np.exp(0.08 * rng.standard_normal())) * (1 if number else first)
        times.observe(truth(signature, rows) * scatter, of(signature, rows), rows, 1)


def error(times: ShapedTimes, signature: Signature, rows: int, factor: float = 1.0) -> float:
    predicted = times.of(rows, 1, of(signature, rows)).expected
    return predicted / (truth(signature, rows) * factor) - 1.0


def test_the_profiled_shape_is_predicted_as_profiled() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    assert times.measured(of(REFERENCE)[0])
    assert times.of(4, 1, of(REFERENCE, 4)).expected == TABLE.expected(4, 1)
    assert times.of(4, 1).expected == TABLE.expected(4, 1)


def test_a_shape_is_not_measured_until_it_has_run() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    (big,) = of(square(1000))
    assert not times.measured(big)
    guess = times.of(1, 1, (big,))
    assert guess.p99 == pytest.approx(100.0 * guess.expected)
    drawn = times.scatter(1, 1, (big,))
    assert drawn.expected == guess.expected
    assert drawn.p99 / drawn.expected == pytest.approx(TABLE.p99(1, 1) / TABLE.expected(1, 1))
    times.observe(3.3, (big,), 1, 1)  # a hundred times as long as profiled, and no less
    assert times.of(1, 1, (big,)).expected == pytest.approx(3.3)
    assert not times.measured(big)  # it may have been slow only because it was the first
    times.observe(1.1, (big,), 1, 1)
    assert times.measured(big)
    assert times.of(1, 1, (big,)).expected == pytest.approx(1.1)


def test_learnt_times_survive_a_file() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    for side in (50, 100, 200, 333):
        run(times, square(side), 20, factor=1.4)
    run(times, square(70), 3)
    again = load_times(json.loads(json.dumps(export_times(times))))
    assert isinstance(again, ShapedTimes)
    assert again.export() == times.export()
    for side in (50, 70, 100, 200, 333, 400):
        for rows in (1, 5):
            before = times.of(rows, 2, of(square(side)))
            assert again.of(rows, 2, of(square(side))).p99 == pytest.approx(before.p99, rel=0.05)


def test_it_is_what_engine_and_schedulers_ask() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    batch_times: BatchTimes = times
    assert batch_times.learns


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("side", [40, 224, 640])
def test_thirty_requests_settle_a_shape_though_its_first_run_was_slow(side: int, seed: int) -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    run(times, REFERENCE, 20, seed=seed)
    run(times, square(side), 30, first=4.0, seed=seed)
    assert abs(error(times, square(side), 4)) < 0.15
    assert max(abs(error(times, square(side), rows)) for rows in (2, 8)) < 0.2


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sides", [(60, 100, 200), (100, 160, 320), (100, 140, 200)])
def test_three_sizes_predict_others_before_they_run(sides: tuple[int, ...], seed: int) -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    for side in sides:
        run(times, square(side), 12, first=3.0, seed=seed)
    for side in (90, 120, 150, 180, 240, 300):
        (request,) = of(square(side))
        assert times.measured(request)
        assert abs(error(times, square(side), 4)) < 0.3
    assert not times.measured(*of(square(2000)))
    assert not times.measured(*of(square(5)))


def test_shapes_that_have_not_run_lately_follow_a_drift_of_the_machine() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    for side in (50, 100, 200):
        run(times, square(side), 40, seed=side)
    run(times, REFERENCE, 80, factor=1.8, seed=7)
    assert times.drift == pytest.approx(1.8, rel=0.1)
    for side in (50, 200, 150):  # the last has never run
        assert abs(error(times, square(side), 4, 1.8)) < 0.2


def test_a_shape_that_changes_by_itself_leaves_the_others_in_the_end() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    for number in range(200):
        run(times, REFERENCE, 1, seed=number)
        run(times, square(200), 1, factor=1.0 if number < 60 else 1.5, seed=number)
    assert abs(error(times, square(200), 4, 1.5)) < 0.1
    assert abs(error(times, REFERENCE, 4)) < 0.1


def test_a_flood_of_shapes_pushes_out_none_that_are_in_use() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    used = [square(side) for side in (50, 100, 160, 224, 320)]
    for signature in used:
        run(times, signature, 40)
    classes, revision = times.classes(1), times.revision
    pools = classes.times
    for number in range(1000):
        strange = ((3, 60 + number, 107),)
        times.observe(truth(((1, 100, (60 + number) * 107 // 100),), 1), of(strange), 1, 1)
        if number % 5 == 0:
            run(times, used[number // 5 % 5], 1, seed=number)
    assert len(times.export()["shapes"]) == MOST_SHAPES  # type: ignore[arg-type]  # a list
    for signature in used:
        assert abs(error(times, signature, 4)) < 0.15
        assert times.measured(*of(signature))
    assert len(times.classes(1)) <= MOST_CLASSES
    assert sum(times.classes(1).shares) == pytest.approx(1.0)
    # A few looks have moved the classes; single newcomers have not.
    assert times.revision - revision < 250
    assert len(pools) <= len(times.classes(1)) + 2


def test_shapes_that_are_asked_for_no_more_make_room_in_the_end() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    for side in range(101, 101 + MOST_SHAPES):
        run(times, square(side), 3)
    new = square(900)
    for _ in range(10 * MEMORY):
        times.observe(truth(new, 1), of(new), 1, 1)
        if times.has_run(*of(new)):
            break
    assert times.has_run(*of(new))


def test_published_times_stay_until_the_revision_rises() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    published: dict[int, list[float]] = {}
    for number in range(200):
        seconds = truth(REFERENCE, 1) * 1.01**number
        times.observe(seconds, of(REFERENCE), 1, 1)
        now = [learnt.of(1, 1).expected for learnt in (*times.classes(1).times, times)]
        assert published.setdefault(times.revision, now) == now
    assert times.of(1, 1) == times.of(1, 1, of(REFERENCE))


def test_without_members_it_is_a_mixture_of_what_comes() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    run(times, REFERENCE, 60)
    run(times, square(300), 60)
    short, long = (times.of(2, 1, of(square(side), 2)) for side in (100, 300))
    mixed = times.of(2, 1)
    assert mixed.expected == pytest.approx((short.expected + long.expected) / 2, rel=0.15)
    assert long.expected < mixed.p99 < long.p99 * 1.001
    assert mixed.on_time(mixed.quantile(0.7)) == pytest.approx(0.7, abs=0.01)
    assert mixed.on_time((short.expected * long.expected) ** 0.5) == pytest.approx(0.5, abs=0.1)
    classes = times.classes(1)
    assert [classes.class_of(*of(square(side))) for side in (90, 100, 300, 400)] == [0, 0, 1, 1]
    assert classes.alone(0) < classes.typical() < classes.alone(1)


def test_sizes_of_the_profile_are_known_from_the_start() -> None:
    sizes = [
        SizeTime(rows, 1, side**2 / 1e4, truth(square(side), rows), square(side))
        for side in (50, 200)
        for rows in (1, 8)
    ]
    times = ShapedTimes(TABLE, REFERENCE, sizes)
    for side in (50, 100, 200):
        assert abs(error(times, square(side), 1)) < 0.15
        assert abs(error(times, square(side), 8)) < 0.15
    assert times.measured(*of(square(140)))
    assert abs(error(times, square(140), 4)) < 0.1
    assert len(times.classes(1)) == 3


def test_a_shape_is_not_refused_for_ever_after_a_slow_first_run() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    (request,) = members = of(square(200))
    times.observe(4.0 * truth(square(200), 1), members, 1, 1)
    assert times.of(1, 1, members).quantile(0.2) < 2.0 * truth(square(200), 1)
    for _ in range(500):
        times.discount(request)
    assert times.of(1, 1, members).expected < 2.0 * truth(square(200), 1)
    assert times.of(1, 1, of(REFERENCE)).expected == pytest.approx(TABLE.expected(1, 1))


def test_trials_settle_a_shape_that_is_wrong_by_any_factor() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    run(times, square(200), 20)
    profiled, other = TABLE.expected(1, 1), times.of(1, 1, of(square(200))).expected
    revision = times.revision
    times.settle(profiled / 50.0, of(REFERENCE), 1, 1)
    assert times.revision > revision
    assert times.of(1, 1, of(REFERENCE)).expected == pytest.approx(profiled / 50.0, rel=0.05)
    assert times.measured(*of(REFERENCE))
    assert times.of(1, 1, of(square(200))).expected == pytest.approx(other)
    times.settle(1.0, of(square(123)), 1, 1)  # there may be no place for it


def test_a_shape_of_which_the_law_is_doubted_has_to_run() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    for side in (50, 200):
        run(times, square(side), 10)
    (request,) = members = of(square(150))
    assert times.measured(request)
    times.discount(request)
    assert not times.measured(request)
    times.observe(truth(square(150), 1), members, 1, 1)
    assert times.measured(request)
    for side in range(1000):  # as many as come: none is kept for ever
        times.discount(of(((3, 100, 100 + side),))[0])
    assert times.measured(*of(((3, 100, 110),)))


def test_refusals_on_an_idle_lane_make_all_predictions_shorter() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    run(times, square(200), 20)
    before = [times.of(1, 1, of(square(side))).expected for side in (100, 200, 150)]
    for _ in range(100):
        times.discount()
    after = [times.of(1, 1, of(square(side))).expected for side in (100, 200, 150)]
    assert [b / a for a, b in zip(before, after, strict=True)] == pytest.approx([0.82] * 3, rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(10, 500), st.integers(1, 8), st.integers(1, 2), st.floats(0.3, 3.0)),
        max_size=40,
    ),
    st.integers(10, 500),
)
def test_predictions_rise_with_rows_and_fall_with_cores(
    batches: list[tuple[int, int, int, float]], side: int
) -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    for size, rows, cores, factor in batches:
        signature = square(size)
        times.observe(truth(signature, rows, cores) * factor, of(signature, rows), rows, cores)
    for members in (of(square(side)), of(REFERENCE), ()):
        for level in (0.01, 0.5, 0.99):
            by_rows = [times.of(rows, 1, members).quantile(level) for rows in (1, 2, 3, 4, 8, 12)]
            assert all(a <= b * 1.0002 for a, b in pairwise(by_rows))
            assert times.of(4, 2, members).quantile(level) <= by_rows[3] * 1.0002
    classes = times.classes(1)
    assert 0 <= classes.class_of(*of(square(side))) < len(classes)


@given(
    st.dictionaries(
        st.integers(1, 3000).map(square),
        st.tuples(st.floats(1e-6, 1e6), st.floats(0.0, 1e4)),
        min_size=1,
        max_size=64,
    )
)
def test_classes_are_few_and_no_wider_than_they_say(shapes: dict[Signature, Any]) -> None:
    sorting = ShapeSorting.of(shapes, None, 30_000)
    assert 1 <= len(sorting.works) <= MOST_CLASSES
    assert len(sorting.edges) == len(sorting.works) - 1
    for signature, (work, _) in shapes.items():
        of = sorting.class_of(signature)
        assert apart(work, sorting.works[of]) <= sorting.width * 1.0001
    assert sorting.holds(sorting, 1.15)


BAD: list[tuple[str, Any, str]] = [
    ("schema", 2, "learnt.schema: this version reads 1"),
    ("speed", 3.0, "learnt: expected speed within"),
    ("batches", -1, "learnt: expected speed within"),
    ("shapes", {}, "learnt.shapes: expected a list"),
    ("shapes", [], "learnt.shapes: expected distinct shapes, with the profile's"),
    ("signature", [[3, -1]], "learnt.shapes[0].signature: expected lists of whole numbers"),
    ("asked", -1.0, "learnt.shapes[0].asked: expected a number of at least 0, got -1.0"),
    ("work", 0.0, "learnt.shapes[0].work: expected a number from 1e-06 to 1e+09, got 0.0"),
    ("seen", 99.0, "learnt.shapes[0].seen: expected a number from -2.3 to 2.3, got 99.0"),
    ("first", [1.0] * 7, "learnt.shapes[0].first: expected fewer than 7 numbers from"),
    ("first", [float("nan")], "learnt.shapes[0].first[0]: expected a finite number"),
    ("correction", {}, "correction.cores: expected a list"),
]


@pytest.mark.parametrize(("field", "value", "message"), BAD)
def test_impossible_times_are_refused(field: str, value: Any, message: str) -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    run(times, square(200), 20)
    before = times.export()
    data = json.loads(json.dumps(before))
    (data if field in data else data["shapes"][0])[field] = value
    with pytest.raises(ProfileError, match=re.escape(message)):
        times.load(data)
    assert times.export() == before


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_cannot_be_are_ignored(seconds: float) -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    before = times.export()
    times.observe(seconds, of(square(200)), 1, 1)
    times.observe(1.0, (), 1, 1)
    assert times.export() == before


def test_no_shape_is_judged_by_a_guess() -> None:
    times = ShapedTimes(LatencyTable.linear(0.01, 0.04, 8), ())
    sides = (50, 100, 200)
    assert not any(times.measured(of(square(side))[0]) for side in (1, *sides))
    for count, side in enumerate(sides):
        assert times.measured(of(square(71))[0]) is False, count
        run(times, square(side), 20)
        assert times.measured(of(square(side))[0])
        learnt = times.of(1, 1, of(square(side)))
        assert learnt.expected == pytest.approx(truth(square(side), 1), rel=0.3)
        assert learnt.p99 < 1.5 * learnt.expected, "how far off the guess may be is forgotten"
    # Three sizes make a law, in which the guess has no part.
    assert times.measured(of(square(71))[0])
    judged = times.of(1, 1, of(square(71))).expected
    assert judged == pytest.approx(truth(square(71), 1), rel=0.3)
    again = load_times(json.loads(json.dumps(export_times(times))))
    assert again.of(1, 1, of(square(71))).expected == pytest.approx(judged)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [([], "shapes: expected an object"), ({"reference": [], "sizes": []}, "missing learnt")],
)
def test_recorded_shapes_that_cannot_be_are_named(shapes: Any, message: str) -> None:
    data = {**export_times(ShapedTimes(TABLE, REFERENCE)), "shapes": shapes}
    with pytest.raises(LayoutError, match=message):
        load_times(data)
