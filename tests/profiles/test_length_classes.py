"""Run classes: sorted by what was measured, merged where least is lost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Request
from slacktide.profiles import BatchLatency, ProfileError, classes_of_samples
from slacktide.profiles.length_classes import partition
from slacktide.profiles.run_classes import NO_HINT

LATENCY = BatchLatency(5.0, 1.0, (1, 2, 4, 8, 16))


def request(application: str = "", hint: float | None = None) -> Request:
    return Request(1, "m", 0.0, 1.0, application=application, work_hint=hint)


def modes(*centres: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {f"at {c:g}": rng.normal(c, 0.3, 500).clip(0.0) for c in centres}


def test_classes_are_numbered_from_the_shortest() -> None:
    classes = classes_of_samples(modes(17.0, 3.0, 10.0), LATENCY)
    assert [classes.class_of(request(f"at {c}")) for c in (3, 10, 17)] == [0, 1, 2]
    assert classes.means == pytest.approx((3.0, 10.0, 17.0), abs=0.1)
    assert classes.shares == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert classes.alone(0) == pytest.approx(8.0, abs=0.1)
    assert classes.typical() == pytest.approx(15.0, abs=0.1)
    assert classes.counts([request("at 10"), request("at 10"), request("at 3")]) == (1, 2, 0)


def test_strangers_are_taken_to_be_long() -> None:
    classes = classes_of_samples(modes(3.0, 17.0), LATENCY)
    assert classes.class_of(request("never seen")) == 1
    assert classes.class_of(request()) == 1


def test_hint_bins_are_keys_of_their_own() -> None:
    samples = {("", 0): [1.0, 1.2], ("", 1): [9.0, 9.1], ("", NO_HINT): [4.0]}
    classes = classes_of_samples(samples, LATENCY, hint_edges=(100.0,))
    hints = (50.0, 99.9, 100.0, 1e9, None)
    assert [classes.class_of(request(hint=hint)) for hint in hints] == [0, 0, 2, 2, 1]


def test_eight_keys_become_four_classes_of_neighbours() -> None:
    centres = (3.0, 3.2, 7.0, 7.1, 12.0, 12.3, 17.0, 17.2)
    classes = classes_of_samples(modes(*centres), LATENCY)
    assert [classes.class_of(request(f"at {c:g}")) for c in centres] == [0, 0, 1, 1, 2, 2, 3, 3]
    apart = modes(*(3.0 + 2.0 * n for n in range(8)))
    assert len(classes_of_samples(apart, LATENCY, most=8)) == 8


def test_arrivals_weigh() -> None:
    """What many ask for is kept apart; what hardly anybody asks for is merged."""
    samples = {"a": [1.0], "b": [3.0], "c": [10.0], "d": [30.0]}
    shares = {"a": 500.0, "b": 500.0, "c": 10.0, "d": 10.0}
    classes = classes_of_samples(samples, LATENCY, shares=shares, most=3)
    assert [classes.class_of(request(name)) for name in "abcd"] == [0, 1, 1, 2]
    even = classes_of_samples(samples, LATENCY, most=3)
    assert [even.class_of(request(name)) for name in "abcd"] == [0, 0, 1, 2]


def test_alike_keys_are_one_class() -> None:
    classes = classes_of_samples({name: [4.0, 4.0] for name in "abc"}, LATENCY)
    assert len(classes) == 1


@given(
    st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.01, 1.0)), min_size=1, max_size=7),
    st.integers(1, 4),
)
def test_partition_is_the_best_there_is(pairs: list[tuple[float, float]], most: int) -> None:
    pairs.sort()
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]

    def spread(cuts: tuple[int, ...]) -> float:
        total = 0.0
        for start, stop in itertools.pairwise(cuts):
            part, mass = np.array(values[start:stop]), np.array(weights[start:stop])
            total += float(mass @ (part - mass @ part / mass.sum()) ** 2)
        return total

    n = len(values)
    every = [
        (0, *inner, n)
        for runs in range(1, min(most, n) + 1)
        for inner in itertools.combinations(range(1, n), runs - 1)
    ]
    cuts = partition(values, weights, most)
    assert cuts[0] == 0
    assert cuts[-1] == n
    assert len(cuts) <= most + 1
    assert spread(tuple(cuts)) <= min(map(spread, every)) + 1e-6


def test_impossible_samples_name_their_key() -> None:
    with pytest.raises(ProfileError, match="'short': expected lengths"):
        classes_of_samples({"short": []}, LATENCY)
    with pytest.raises(ProfileError, match="'short': expected lengths, finite and not negative"):
        classes_of_samples({"short": [1.0, -2.0]}, LATENCY)
    with pytest.raises(ProfileError, match="no distributions"):
        classes_of_samples({}, LATENCY)
