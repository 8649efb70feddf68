"""Which boxes of a detector go on, and what part of a frame a box covers."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.crops import (
    FEW,
    MOST_BOXES,
    BoxChoice,
    bounds,
    crop_aspects,
    crop_extent,
    crop_width,
    part_ends,
    quad_sides,
)

EDGES = st.floats(-2, 3, width=32) | st.just(math.nan) | st.just(math.inf)
BOXES = st.lists(st.tuples(EDGES, EDGES, EDGES, EDGES), max_size=12)


def boxes(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, 4)


def area(box: np.ndarray) -> float:
    return float(np.prod(np.maximum(box[2:] - box[:2], 0)))


def test_class_score_and_number_decide() -> None:
    candidates = boxes((0, 0, 1, 1), (0, 0, 0.5, 1), (0.2, 0, 1, 1), (0, 0.3, 1, 1))
    scores, classes = np.array([0.2, 0.9, 0.5, 0.9], np.float32), np.array([3, 0, 3, 1])
    assert BoxChoice().choose(candidates, scores, classes).tolist() == [1, 3, 2, 0]
    assert BoxChoice(score=0.5).choose(candidates, scores, classes).tolist() == [1, 3, 2]
    assert BoxChoice((3, 1)).choose(candidates, scores, classes).tolist() == [3, 2, 0]
    assert BoxChoice((3, 1), most=1).choose(candidates, scores, classes).tolist() == [3]
    assert BoxChoice((7,)).choose(candidates, scores, classes).tolist() == []
    assert BoxChoice((3,), 0.9).choose(candidates).tolist() == [0, 1, 2, 3]


def test_boxes_that_are_none_never_go_on() -> None:
    nan, inf = math.nan, math.inf
    bad = boxes((nan, 0, 1, 1), (0, 0, inf, 1), (0.5, 0, 0.5, 1), (1, 0, 0, 1), (1.1, 0, 2, 1))
    good = boxes((-1, -1, 0.1, 2))
    scores = np.array([0.5, nan, 0.5, 0.5, 0.5, 0.1], np.float32)
    assert BoxChoice().choose(np.concatenate([bad, good]), scores).tolist() == [5]
    assert BoxChoice().choose(good, np.array([nan], np.float32)).tolist() == []
    assert BoxChoice(overlap=0.5).choose(boxes()).tolist() == []
    thousand = np.tile(good, (1000, 1))
    assert len(BoxChoice().choose(thousand, np.full(1000, 0.5, np.float32))) == MOST_BOXES
    assert len(BoxChoice(overlap=0.5).choose(thousand)) == 1


def test_of_boxes_that_overlap_the_best_of_each_class_stays() -> None:
    candidates = boxes((0, 0, 0.4, 1), (0.1, 0, 0.5, 1), (0.1, 0, 0.5, 1), (0.6, 0, 1, 1))
    scores, classes = np.array([0.6, 0.7, 0.5, 0.1], np.float32), np.array([1, 1, 2, 1])
    assert BoxChoice(overlap=0.5).choose(candidates, scores, classes).tolist() == [1, 2, 3]
    assert BoxChoice(overlap=0.5).choose(candidates, scores).tolist() == [1, 3]
    assert BoxChoice(overlap=0.65).choose(candidates, scores).tolist() == [1, 0, 3]


def test_boxes_that_are_too_low_stay_behind() -> None:
    candidates = boxes((0.0, 0.0, 0.9, 0.1), (0.0, 0.0, 0.01, 0.2), (0.0, 0.9, 0.5, 1.4))
    assert BoxChoice(height=0.15).choose(candidates).tolist() == [1], (
        "what is outside does not count"
    )


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \[n, 4\] and \[n\] of boxes, got \[2, 3\]"):
        BoxChoice().choose(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"got \[2, 4\] and \[1\]"):
        BoxChoice().choose(np.zeros((2, 4), np.float32), np.zeros(1, np.float32))


@given(BOXES, st.floats(0, 1), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_kept_boxes_are_apart_and_dropped_boxes_have_a_better_one(
    candidates: list[tuple[float, ...]], overlap: float, most: int, seed: int
) -> None:
    array = boxes(*candidates)
    rng = np.random.default_rng(seed)
    scores, classes = rng.random(len(array), np.float32), rng.integers(0, 2, len(array))
    chosen = BoxChoice(overlap=overlap, most=most).choose(array, scores, classes).tolist()
    assert len(chosen) <= most
    assert len({*chosen}) == len(chosen)
    assert sorted(chosen, key=lambda at: -scores[at]) == chosen
    inside = np.clip(array, 0, 1)

    def hides(first: int, other: int) -> bool:
        a, b = inside[first], inside[other]
        shared = area(np.concatenate([np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])]))
        return bool(
            shared > overlap * (area(a) + area(b) - shared) + 1e-6
            and classes[first] == classes[other]
        )

    for place, at in enumerate(chosen):
        assert crop_extent(array[at], 1000, 1000) is not None
        assert not any(hides(other, at) for other in chosen[:place])


ODD = EDGES | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0])


@given(st.lists(st.tuples(ODD, ODD, ODD, ODD, ODD), max_size=12), st.booleans())
def test_few_boxes_are_chosen_as_many_are(
    candidates: list[tuple[float, ...]], of_classes: bool
) -> None:
    some = np.array(candidates, np.float32).reshape(-1, 5)
    none = np.tile(np.array([1, 1, 0, 0, 1], np.float32), (FEW + 1, 1))
    all_of = np.concatenate([some, none])
    choice = BoxChoice((0,) if of_classes else (), score=0.25)
    alone, among = (
        choice.choose(detections[:, :4], detections[:, 4], np.arange(len(detections)) % 2).tolist()
        for detections in (some, all_of)
    )
    assert alone == among


@given(st.tuples(EDGES, EDGES, EDGES, EDGES), st.integers(1, 3000), st.integers(1, 3000))
def test_an_extent_lies_within_the_frame_and_covers_its_box(
    box: tuple[float, ...], width: int, height: int
) -> None:
    array = np.array(box, np.float32)
    extent = crop_extent(array, width, height)
    if extent is None:
        inside = np.clip(array, 0, 1)
        assert not (np.isfinite(array).all() and (inside[:2] < inside[2:]).all())
        return
    left, top, right, bottom = extent
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    x0, y0, x1, y1 = np.clip(array, 0, 1) * (width, height, width, height)
    assert left <= x0 + 1e-3
    assert top <= y0 + 1e-3
    assert right >= x1 - 1e-3
    assert bottom >= y1 - 1e-3
    assert 1 <= crop_width(extent, 64) <= 64 * 8


def test_a_margin_is_part_of_the_box_and_widths_keep_shapes() -> None:
    box = np.array([0.5, 0.5, 0.75, 1], np.float32)
    assert crop_extent(box, 100, 200) == (50, 100, 75, 200)
    assert crop_extent(box, 100, 200, 0.2) == (45, 80, 80, 200)
    assert crop_width((0, 0, 30, 20), 64) == 96
    assert crop_width((0, 0, 1, 20), 8) == 1
    assert crop_width((0, 0, 2000, 1), 64) == 512


QUADS = np.array(
    [
        [[0.1, 0.2], [0.5, 0.2], [0.5, 0.4], [0.1, 0.4]],
        [[0.1, 0.1], [0.2, 0.1], [0.2, 0.9], [0.1, 0.9]],
        [[0.1, 0.1], [0.5, 0.5], [0.9, 0.9], [0.5, 0.5]],  # on a line
        [[math.nan, 0.1], [0.5, 0.1], [0.5, 0.5], [0.1, 0.5]],
        [[0.0, 0.0]] * 4,
        [[math.inf, 0], [1, 0], [1, 1], [0, 1]],
    ],
    np.float32,
)


def test_quads_have_bounds_unless_they_are_degenerate() -> None:
    around = bounds(QUADS)
    assert np.allclose(around[0], (0.1, 0.2, 0.5, 0.4))
    assert BoxChoice().choose(around).tolist() == [0, 1]
    assert bounds(QUADS[:0]).shape == (0, 4)


def test_high_quads_count_as_turned_upright() -> None:
    sides = quad_sides(QUADS[:2] * (100, 100))
    assert np.allclose(sides, [[40, 20], [80, 10]])
    aspects = crop_aspects(QUADS.tobytes(), len(QUADS), 100, 100)
    assert aspects[:2].tolist() == pytest.approx([2, 8])
    assert np.isfinite(aspects).all()
    plain = boxes((0, 0, 1, 0.25), (-1, 0, 0.5, 2), (0, 0, 0, 1))
    assert crop_aspects(plain.tobytes(), 3, 100, 200).tolist() == pytest.approx([8, 1, 0])


@given(st.lists(st.floats(0.01, 200), min_size=1, max_size=30))
def test_parts_of_crops_are_of_about_one_width(aspects: list[float]) -> None:
    aspects = sorted(aspects, reverse=True)
    ends = part_ends(aspects)
    assert ends[-1] == len(aspects)
    for first, end in pairwise((0, *ends)):
        assert first < end
        assert aspects[end - 1] >= aspects[first] / 2 ** (1 / 4) - 1e-9 or aspects[first] <= 4


def test_the_limit_of_the_width_may_be_another() -> None:
    assert crop_width((0, 0, 200, 10), 20) == 160
    assert crop_width((0, 0, 200, 10), 20, None) == 400
    assert crop_width((0, 0, 200, 10), 20, 2.5) == 50
