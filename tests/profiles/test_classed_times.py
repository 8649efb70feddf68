"""ClassedTimes: all requests are alike until proven otherwise, then as long as measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from slacktide.domain import Request
from slacktide.profiles import (
    BatchLatency,
    BatchTimes,
    ClassedTimes,
    CorrectedTimes,
    LatencyTable,
    ProfileError,
)

TABLE = LatencyTable.linear(5.0, 1.0, 16, spread=1.2)
"""c0 = 5, and a row as profiled takes 1."""
SHORT_AND_LONG = {"short": 1.0, "long": 5.0}


def request(application: str = "", hint: float | None = None) -> Request:
    return Request(1, "m", 0.0, 1.0, application=application, work_hint=hint)


def live(
    times: ClassedTimes,
    batches: int,
    lengths: dict[str, float] = SHORT_AND_LONG,
    *,
    machine: float = 1.0,
    fixed: float = 5.0,
    alone: float = 0.3,
    noise: float = 0.03,
    hint: Callable[[str], float | None] = lambda application: None,
    seed: int = 1,
) -> list[tuple[float, float]]:
    """Run batches of random members; returns (predicted, taken) of each."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(batches):
        rows = 1 if rng.random() < alone else int(rng.integers(2, 9))
        names = [str(name) for name in rng.choice(list(lengths), rows)]
        longest = max(lengths[name] * math.exp(0.05 * rng.standard_normal()) for name in names)
        seconds = machine * (fixed + rows * longest) * math.exp(noise * rng.standard_normal())
        members = [request(name, hint(name)) for name in names]
        pairs.append((times.of(rows, 1, members).expected, seconds))
        times.observe(seconds, members, rows, 1)
    return pairs


def off(pairs: list[tuple[float, float]]) -> float:
    """Median of predicted ÷ taken, minus 1."""
    return float(np.median([a / b for a, b in pairs])) - 1.0


@pytest.mark.parametrize("application", ["", "one"])
def test_requests_all_alike_are_predicted_as_before(application: str) -> None:
    times, before = ClassedTimes(TABLE), CorrectedTimes(TABLE)
    answers: BatchTimes = times
    rng = np.random.default_rng(3)
    for _ in range(400):
        rows = int(rng.integers(1, 17))
        seconds = 1.2 * TABLE.expected(rows, 1) * math.exp(0.05 * rng.standard_normal())
        members = [request(application)] * rows
        answers.observe(seconds, members, rows, 1)
        before.observe(seconds, members, rows, 1)
    assert answers.classes(1) is None
    assert answers.revision == before.revision
    for rows in (1, 4, 16):
        assert answers.of(rows, 1).expected == before.of(rows, 1).expected
        assert answers.of(rows, 1).p99 == before.of(rows, 1).p99
        assert answers.of(rows, 1).quantile(0.3) == before.of(rows, 1).quantile(0.3)
        assert answers.of(rows, 1).on_time(9.0) == before.of(rows, 1).on_time(9.0)
        assert answers.of(rows, 1, [request()] * rows).p99 == before.of(rows, 1).p99
    assert times.prediction_error == before.prediction_error
    assert times.drift == before.drift
    assert times.batches == before.batches == 400
    answers.discount()
    before.discount()
    assert times.drift == before.drift


def test_applications_of_unequal_length_are_told_apart() -> None:
    times = ClassedTimes(TABLE)
    pairs = live(times, 1_000)
    classes = times.classes(1)
    assert classes is not None
    assert len(classes) == 2
    assert classes.class_of(request("short")) == 0
    assert classes.class_of(request("long")) == classes.class_of(request("stranger")) == 1
    assert classes.alone(0) == pytest.approx(6.0, rel=0.05)
    assert classes.alone(1) == pytest.approx(10.0, rel=0.05)
    assert classes.shares == pytest.approx((0.5, 0.5), abs=0.1)
    assert abs(off(pairs[-300:])) < 0.02
    assert times.prediction_error is not None
    assert times.prediction_error < 0.06


def test_the_same_snapshot_until_the_revision_rises() -> None:
    times = ClassedTimes(TABLE)
    live(times, 500)
    changes = 0
    for seed in range(300):
        revision, classes = times.revision, times.classes(1)
        live(times, 1, seed=seed)
        changed = times.revision != revision
        changes += changed
        assert (times.classes(1) is not classes) == changed
    assert 0 < changes < 30


def test_hints_do_in_place_of_applications() -> None:
    times = ClassedTimes(TABLE)
    lengths = {str(n): float(n) for n in range(1, 9)}
    rng = np.random.default_rng(9)
    for _ in range(1_500):
        name = str(rng.choice(list(lengths)))
        hint = lengths[name] * 100.0
        times.observe(5.0 + lengths[name], [request(hint=hint)], 1, 1)
    classes = times.classes(1)
    assert classes is not None
    assert len(classes) == 4
    order = [classes.class_of(request(hint=100.0 * n)) for n in range(1, 9)]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2, 3}


def test_a_batch_of_equal_hints_teaches_as_one_alone() -> None:
    times = ClassedTimes(TABLE)
    for _ in range(60):
        for hint, length in ((10.0, 1.0), (50.0, 5.0)):
            times.observe(5.0 + 4 * length, [request("a", hint)] * 4, 4, 1)
    classes = times.classes(1)
    assert classes is not None
    assert classes.alone(0) == pytest.approx(6.0, rel=0.05)
    assert classes.alone(1) == pytest.approx(10.0, rel=0.05)


def test_hints_that_lie_land_where_measured() -> None:
    """Long requests that claim to be short: their bin of their application is a long one."""
    times = ClassedTimes(TABLE)
    for _ in range(200):
        times.observe(6.0, [request("honest", 10.0)], 1, 1)
        times.observe(10.0, [request("honest", 50.0)], 1, 1)
        times.observe(10.0, [request("liar", 10.0)], 1, 1)
    classes = times.classes(1)
    assert classes is not None
    assert classes.class_of(request("honest", 10.0)) == 0
    assert classes.class_of(request("honest", 50.0)) == 1
    assert classes.class_of(request("liar", 10.0)) == 1


@pytest.mark.parametrize("machine", [0.75, 1.3])
def test_a_machine_that_changes_is_followed_within_some_batches(machine: float) -> None:
    times = ClassedTimes(TABLE)
    live(times, 1_000)
    live(times, 60, machine=machine, seed=2)
    assert abs(off(live(times, 100, machine=machine, seed=3))) < 0.04
    for seed in range(4, 12):
        assert abs(off(live(times, 300, machine=machine, seed=seed))) < 0.06


@pytest.mark.parametrize("fixed", [3.0, 7.5])
@pytest.mark.parametrize("alone", [0.05, 0.5])
def test_a_profile_with_the_wrong_c0_comes_right(fixed: float, alone: float) -> None:
    times = ClassedTimes(TABLE)
    live(times, 3_000, fixed=fixed, alone=alone)
    pairs = live(times, 1_000, fixed=fixed, alone=alone, seed=2)
    assert abs(off(pairs)) < 0.03
    classes = times.classes(1)
    assert classes is not None
    assert classes.latency.c0 == pytest.approx(fixed, rel=0.15)


def test_hiccups_move_little() -> None:
    times = ClassedTimes(TABLE)
    live(times, 1_000)
    for _ in range(2):
        times.observe(2_000.0, [request("short")], 1, 1)
    live(times, 100, seed=2)
    assert times.of(1, 1, [request("short")]).expected == pytest.approx(6.0, rel=0.05)


def test_a_key_with_few_samples_is_taken_to_be_long() -> None:
    times = ClassedTimes(TABLE)
    live(times, 600)
    assert times.unknown_keys == 0
    for _ in range(11):
        times.observe(6.0, [request("new")], 1, 1)
    live(times, 300, seed=2)
    assert times.unknown_keys == 1
    classes = times.classes(1)
    assert classes is not None
    assert classes.class_of(request("new")) == len(classes) - 1
    for _ in range(50):
        times.observe(6.0, [request("new")], 1, 1)
    classes = times.classes(1)
    assert times.unknown_keys == 0
    assert classes is not None
    assert classes.class_of(request("new")) == 0


def test_lengths_that_become_alike_are_no_longer_told_apart() -> None:
    times = ClassedTimes(TABLE)
    live(times, 600)
    assert times.classes(1) is not None
    live(times, 2_000, {"short": 3.0, "long": 3.0}, alone=0.8, seed=2)
    assert times.classes(1) is None
    assert times.of(1, 1, [request("short")]).expected == times.point.of(1, 1).expected


def test_made_up_applications_take_no_room_from_others() -> None:
    times = ClassedTimes(TABLE)
    live(times, 600)
    for n in range(1_000):
        times.observe(6.0, [request(f"made up {n}")], 1, 1)
    live(times, 300, seed=2)
    classes = times.classes(1)
    assert classes is not None
    assert len(classes.by_key) <= 64
    assert classes.class_of(request("short")) == 0
    assert classes.class_of(request("long")) == len(classes) - 1


def test_requests_worth_running_alone() -> None:
    times = ClassedTimes(TABLE)
    assert not times.wants(request())
    assert times.wants(request("short"))
    for _ in range(60):
        times.observe(6.0, [request("short")], 1, 1)
    assert not times.wants(request("short"))
    assert times.wants(request("long"))


def test_trained_beforehand() -> None:
    times = ClassedTimes(TABLE, latency=lambda cores: BatchLatency(5.0, 1.0, (1, 2, 4, 8, 16)))
    rng = np.random.default_rng(1)
    times.train({"a": rng.normal(3.0, 0.5, 2_000), "b": rng.normal(9.0, 0.5, 2_000)})
    members = [request("a"), request("a"), request("b")]
    assert times.of(3, 1, members).expected == pytest.approx(5.0 + 4 * 9.0, rel=0.02)
    with pytest.raises(ProfileError, match="'c': expected lengths"):
        times.train({"c": [math.nan]})


def test_the_error_is_that_of_the_first_batch_then_a_mean_that_forgets() -> None:
    times = ClassedTimes(TABLE)
    times.train({"a": np.full(2_000, 1.0), "b": np.full(2_000, 9.0)})

    def run(ratio: float) -> float:
        """One that takes `ratio` × as long as predicted; the error told behind it."""
        expected = times.of(1, 1, [request("b")]).expected
        times.observe(ratio * expected, [request("b")], 1, 1)
        assert times.prediction_error is not None
        return times.prediction_error

    assert times.prediction_error is None
    assert run(1.4) == pytest.approx(0.4)
    assert run(0.8) == pytest.approx(0.4 + 0.05 * (0.2 - 0.4))
    assert run(1.0) == pytest.approx(0.95 * 0.39)
    assert run(1e6) == pytest.approx(0.95 * 0.3705 + 0.05 * 10.0)


def test_once_an_application_was_named_requests_without_one_are_told_apart_also_when_read() -> None:
    times = ClassedTimes(TABLE)
    times.observe(6.0, [request()], 1, 1)
    assert times.unknown_keys == 0
    times.observe(6.0, [request("named")], 1, 1)
    again = ClassedTimes(TABLE)
    again.load(json.loads(json.dumps(times.export())))
    for learnt in (times, again):
        learnt.observe(6.0, [request()], 1, 1)
        assert learnt.unknown_keys == 2


def test_learnt_classes_can_be_written_and_read() -> None:
    times = ClassedTimes(TABLE)
    live(times, 1_500, hint=lambda name: 10.0 if name == "short" else None)
    data = json.loads(json.dumps(times.export()))
    again = ClassedTimes(TABLE)
    again.load(data)
    assert again.export() == times.export()
    for name, hint in (("short", 10.0), ("long", None)):
        before = times.of(1, 1, [request(name, hint)])
        after = again.of(1, 1, [request(name, hint)])
        assert after.expected == pytest.approx(before.expected, rel=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("speed"), "learnt: missing speed"),
        (lambda d: d.update(schema=9), "learnt.schema: this version reads 1, got 9"),
        (lambda d: d.update(speed="fast"), "learnt.speed: expected a finite number"),
        (lambda d: d.update(fixed=5.0), r"learnt.fixed: expected at most ±1\.099, got 5\.0"),
        (lambda d: d["lengths"].update(edges=[2, 1]), "lengths.edges: expected ascending"),
        (
            lambda d: d["lengths"]["keys"].append(
                {**d["lengths"]["keys"][0], "bin": 4, "hints": d["lengths"]["keys"][0]["gross"]}
            ),
            r"lengths.keys\[2\].bin: expected at most 0",
        ),
        (lambda d: d["lengths"]["keys"][1].update(bin=-2), r"keys\[1\].bin: expected at least -1"),
        (
            lambda d: d["lengths"]["keys"][0]["gross"].append(1.0),
            r"keys\[0\]: expected as many gross, fixed and",
        ),
        (
            lambda d: d["lengths"]["keys"][0]["fixed"].__setitem__(0, -1),
            "arrivals, gross and fixed of 0 or more",
        ),
        (lambda d: d["lengths"]["keys"][0].update(hints=[]), r"keys\[0\].hints: expected null"),
        (
            lambda d: d["lengths"]["keys"].append(d["lengths"]["keys"][0]),
            r"keys\[2\]: \('short', -1\) occurs twice",
        ),
    ],
)
def test_impossible_classes_are_refused(change: Callable[[dict], object], message: str) -> None:
    times = ClassedTimes(TABLE)
    times.train({"short": [1.0] * 30, "long": [5.0] * 30})
    data = json.loads(json.dumps(times.export()))
    change(data)
    with pytest.raises(ProfileError, match=message):
        ClassedTimes(TABLE).load(data)


def test_with_classes_chances_are_asked_of_them_and_not_of_all_alike() -> None:
    times = ClassedTimes(TABLE)
    live(times, 600)
    assert times.classes(1) is not None
    for level in (0.1, 0.5, 0.9):
        within = times.of(4, 1).quantile(level)
        assert times.of(4, 1).on_time(within) == pytest.approx(level, abs=0.02)
    apart = [
        abs(times.of(4, 1).on_time(s) - times.point.of(4, 1).on_time(s)) for s in range(9, 30, 2)
    ]
    assert max(apart) > 0.1, "the two would say the same"


def test_classes_that_refuse_everything_are_doubted_until_something_runs() -> None:
    times = ClassedTimes(TABLE)
    live(times, 600)
    before, revision = times.of(1, 1, [request("short")]).expected, times.revision
    refusals = 0
    while times.of(1, 1, [request("short")]).expected > 0.9 * before:
        times.discount()
        refusals += 1
        assert refusals < 500
    published = times.revision - revision
    assert 1 <= published < refusals, "it is published where it shows, not at every refusal"
    for _ in range(20_000):
        times.discount()
    assert times.of(1, 1, [request("short")]).expected > 0.05 * before, "it is bounded"


def test_trials_settle_predictions_with_classes_and_without() -> None:
    times = ClassedTimes(TABLE)
    before, revision = times.of(1, 1).expected, times.revision
    times.settle(before / 50.0, [request()], 1, 1)
    assert times.revision > revision
    assert times.of(1, 1).expected == pytest.approx(before / 50.0)
    times = ClassedTimes(TABLE)
    live(times, 600)
    members = [request("short")]
    before = times.of(1, 1, members).expected
    times.settle(before / 3.0, members, 1, 1)
    assert times.of(1, 1, members).expected == pytest.approx(before / 3.0, rel=0.02)


def test_lengths_are_told_apart_by_what_a_request_takes_alone_with_its_fixed_part() -> None:
    """Twice the length is little where the fixed part is large; then all are taken to be alike."""
    lengths = {"short": 0.4, "long": 0.8}
    times = ClassedTimes(TABLE)
    live(times, 1_500, lengths, fixed=10.0, alone=0.8)  # alone: 10.4 and 10.8
    assert times.classes(1) is None
    times = ClassedTimes(LatencyTable.linear(0.5, 1.0, 16, spread=1.2))
    live(times, 1_500, lengths, fixed=0.5, alone=0.8)  # alone: 0.9 and 1.3
    assert times.classes(1) is not None


def test_runs_shorter_than_the_fixed_part_of_the_profile_are_learnt_like_others() -> None:
    """Every length then comes out as nothing at all, from the first sample on."""
    times = ClassedTimes(TABLE)
    pairs = live(times, 1_500, {"short": 0.4, "long": 0.8}, fixed=0.5, alone=0.8)
    assert all(math.isfinite(predicted) and predicted > 0.0 for predicted, _ in pairs)
    assert abs(off(pairs[-300:])) < 0.3


def test_once_told_apart_they_stay_so_for_a_little_less() -> None:
    """7.5 % apart keeps classes that are there and makes none; 15 % apart makes them."""
    near = {"short": 1.0, "long": 1.7}  # alone: 6.0 and 6.7, 11.7 % apart
    fresh, used = ClassedTimes(TABLE), ClassedTimes(TABLE)
    live(fresh, 2_000, near, alone=0.8)
    assert fresh.classes(1) is None
    live(used, 600)
    live(used, 2_000, near, alone=0.8, seed=2)
    assert used.classes(1) is not None
