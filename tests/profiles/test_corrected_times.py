"""CorrectedTimes: learns a changed speed soon, a hiccup hardly, and stays monotone throughout."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.profiles import BatchTimes, CorrectedTimes, LatencyTable, ProfileError

TOLERANCE = 1 + 1e-12
OBSERVATIONS = st.lists(
    st.tuples(st.floats(1e-6, 100.0), st.integers(1, 80), st.integers(1, 20)), max_size=25
)


def live(
    times: CorrectedTimes,
    batches: int,
    *,
    rows: int = 8,
    factor: float = 1.0,
    noise: float = 0.05,
    hiccups: float = 0.0,
    seed: int = 1,
) -> None:
    """Run batches that take `factor` × the profile, scattered, some of them 50 times as long."""
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        seconds = times.table.expected(rows, 1) * factor * math.exp(noise * rng.standard_normal())
        times.observe(seconds * (50.0 if rng.random() < hiccups else 1.0), (), rows, 1)


def test_is_what_the_engine_asks_for(resnet: LatencyTable) -> None:
    times: BatchTimes = CorrectedTimes(resnet)
    assert times.revision == 0
    assert times.of(8, 1).expected == resnet.expected(8, 1)
    assert times.of(8, 1).p99 == pytest.approx(resnet.p99(8, 1))
    assert times.of(8, 1).quantile(0.5) == pytest.approx(times.of(8, 1).expected)
    assert times.of(8, 2).on_time(times.of(8, 2).p99) == pytest.approx(0.99)


@given(st.from_type(LatencyTable), OBSERVATIONS, st.floats(0.001, 0.9999), st.floats(1e-5, 50.0))
def test_monotone_in_rows_and_cores_whatever_was_seen(
    table: LatencyTable,
    batches: list[tuple[float, int, int]],
    level: float,
    budget: float,
) -> None:
    times = CorrectedTimes(table)
    for seconds, rows, cores in batches:
        times.observe(seconds, (), rows, cores)
    for cores, more_cores in pairwise((1, 2, 3, 5, 8, 16, 20)):
        for rows, more_rows in pairwise((1, 2, 3, 7, 20, 64, 80, 200)):
            base = times.of(rows, cores)
            fuller = times.of(more_rows, cores)
            assert base.expected <= fuller.expected * TOLERANCE
            assert base.p99 <= fuller.p99 * TOLERANCE
            assert base.quantile(level) <= fuller.quantile(level) * (1 + 1e-9)
            assert base.on_time(budget) >= fuller.on_time(budget) - 1e-9
            faster = times.of(rows, more_cores)
            assert base.expected * TOLERANCE >= faster.expected
            assert base.p99 * TOLERANCE >= faster.p99
            assert base.quantile(level) * (1 + 1e-9) >= faster.quantile(level)
            assert base.p99 > base.expected
            assert base.on_time(base.quantile(level)) == pytest.approx(level, abs=1e-6)


@given(st.from_type(LatencyTable), OBSERVATIONS)
def test_never_moved_by_more_than_ten(
    table: LatencyTable, batches: list[tuple[float, int, int]]
) -> None:
    times = CorrectedTimes(table)
    for seconds, rows, cores in batches:
        times.observe(seconds, (), rows, cores)
    highest = max(value for row in table.p50_s for value in row)
    assert table.p50_s[0][-1] / 10.001 <= times.of(1, 20).expected <= highest * 10.001


@pytest.mark.parametrize("factor", [0.5, 1.3, 2.0])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_changed_speed_is_learnt_within_sixty_batches(
    resnet: LatencyTable, factor: float, noise: float
) -> None:
    times = CorrectedTimes(resnet)
    live(times, 300, noise=noise)
    live(times, 60, factor=factor, noise=noise, seed=2)
    assert times.of(8, 1).expected == pytest.approx(resnet.expected(8, 1) * factor, rel=0.05)
    assert times.revision > 5


def test_a_wrong_profile_is_corrected_from_the_first_batches(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    live(times, 25, factor=1.5)
    assert times.of(8, 1).expected == pytest.approx(resnet.expected(8, 1) * 1.5, rel=0.06)


def test_sizes_never_seen_follow_the_machine(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    live(times, 200, factor=1.6)
    for rows, cores in ((1, 1), (32, 1), (16, 2)):
        ratio = times.of(rows, cores).expected / resnet.expected(rows, cores)
        assert ratio == pytest.approx(1.6, rel=0.08)
    assert times.drift == pytest.approx(1.6, rel=0.08)


def test_a_badly_profiled_size_moves_itself_not_the_others(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    for seed in range(10):
        live(times, 20, rows=1, seed=seed)
        live(times, 20, rows=32, factor=1.5, seed=100 + seed)
    assert times.of(1, 1).expected == pytest.approx(resnet.expected(1, 1), rel=0.08)
    assert times.of(32, 1).expected == pytest.approx(1.5 * resnet.expected(32, 1), rel=0.08)


@pytest.mark.parametrize("settled", [0, 500])
def test_one_hiccup_changes_little(resnet: LatencyTable, settled: int) -> None:
    times = CorrectedTimes(resnet)
    live(times, settled)
    p50, p99 = times.of(8, 1).expected, times.of(8, 1).p99
    times.observe(100 * resnet.expected(8, 1), (), 8, 1)
    assert times.of(8, 1).expected == pytest.approx(p50, rel=0.05)
    assert times.of(8, 1).p99 == pytest.approx(p99, rel=0.10)


def test_rare_hiccups_widen_the_p99_and_leave_the_median(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    live(times, 3000, noise=0.02, hiccups=0.04)
    assert times.of(8, 1).expected == pytest.approx(resnet.expected(8, 1), rel=0.05)
    assert times.of(8, 1).p99 > 3 * times.of(8, 1).expected


def test_live_scatter_sets_both_spreads(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    live(times, 4000, noise=0.3)
    p50 = resnet.expected(8, 1)
    assert times.of(8, 1).p99 / p50 == pytest.approx(math.exp(0.3 * 2.326), rel=0.25)
    assert times.of(8, 1).quantile(0.1) / p50 == pytest.approx(math.exp(-0.3 * 1.282), rel=0.12)


def test_a_drift_is_not_taken_for_scatter(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    live(times, 300, noise=0.02)
    spread = times.of(8, 1).p99 / times.of(8, 1).expected
    live(times, 100, factor=2.0, noise=0.02, seed=2)
    assert times.of(8, 1).p99 / times.of(8, 1).expected == pytest.approx(spread, rel=0.1)


def test_predictions_stand_still_until_the_revision_rises(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    rng = np.random.default_rng(3)
    points = [(rows, cores) for rows in (1, 3, 8, 40) for cores in (1, 2)]
    before, revision = [times.of(*at) for at in points], times.revision
    rose = 0
    for _ in range(400):
        rows = int(rng.integers(1, 33))
        times.observe(resnet.expected(rows, 1) * math.exp(0.1 * rng.standard_normal()), (), rows, 1)
        after = [times.of(*at) for at in points]
        if times.revision == revision:
            assert after == before
        else:
            assert times.revision == revision + 1
            rose += 1
        before, revision = after, times.revision
    assert 10 < rose < 300


def test_unmoved_predictions_leave_the_revision_alone(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    for _ in range(20):
        times.observe(times.of(4, 1).expected, (), 4, 1)
    assert times.revision <= 8  # only the spreads narrow, a little each
    assert times.of(4, 1).expected == resnet.expected(4, 1)


def test_drifted_after_fifty_batches_and_no_longer_when_it_is_over(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    live(times, 40, factor=2.0)
    assert not times.drifted
    live(times, 60, factor=2.0)
    assert times.drifted
    live(times, 200)
    assert not times.drifted
    assert times.drift == pytest.approx(1.0, abs=0.15)


def test_prediction_error_is_relative_and_bounded(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    assert times.prediction_error is None
    times.observe(1.5 * times.of(8, 1).expected, (), 8, 1)
    assert times.prediction_error == pytest.approx(0.5)
    times.observe(1e6, (), 8, 1)
    assert times.prediction_error is not None
    assert times.prediction_error <= 0.5 + 0.05 * 10


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_times_that_say_nothing_are_ignored(resnet: LatencyTable, seconds: float) -> None:
    times = CorrectedTimes(resnet)
    times.observe(seconds, (), 8, 1)
    assert times.batches == 0
    assert times.prediction_error is None
    assert times.of(8, 1).expected == resnet.expected(8, 1)


def test_memory_is_bounded(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    for rows in range(1, 10_000):
        times.of(rows, 1)
        times.observe(resnet.expected(rows, 1), (), rows, 1)
    parts = [getattr(times, name) for name in dir(times) if not name.startswith("__")]
    held = [part for part in parts if isinstance(part, dict | list)]
    assert held
    assert all(len(value) <= 4096 for value in held)


def test_nonsense_questions_are_errors(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    with pytest.raises(ProfileError, match="at least 1"):
        times.of(0, 1)
    with pytest.raises(ProfileError, match="level"):
        times.of(1, 1).quantile(-0.1)


def test_predictions_that_refuse_everything_are_doubted_until_something_runs():
    times = CorrectedTimes(LatencyTable.flat(0.010, 4))
    for _ in range(100):
        times.observe(0.030, (), 1, 1)  # a bad moment, and then nothing may run any more
    assert times.of(1, 1).expected == pytest.approx(0.030, rel=0.1)
    refusals = 0
    while times.of(1, 1).expected > 0.012:
        times.discount()
        refusals += 1
    assert 300 < refusals < 600
    times.observe(0.010, (), 1, 1)
    assert times.of(1, 1).expected < 0.013


# Core counts that nobody measured


def amdahl_table(cores: tuple[int, ...], factor: float = 1.0) -> LatencyTable:
    """0.012 · b / c + 0.03 / c + 0.003 · b + 0.005, at batches up to 8."""
    sizes = (1, 2, 4, 8)
    grid = [[factor * ((0.012 * b + 0.03) / c + 0.003 * b + 0.005) for c in cores] for b in sizes]
    return LatencyTable.from_grid(sizes, cores, grid, [[1.2 * s for s in row] for row in grid])


def run_on(
    times: CorrectedTimes, cores: int, factor: float, batches: int = 150, seed: int = 3
) -> None:
    """Run batches of all sizes that take `factor` × the law of `amdahl_table`."""
    law = amdahl_table((cores,), factor)
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        rows = int(rng.choice((1, 2, 4, 8)))
        seconds = law.expected(rows, cores) * math.exp(0.02 * rng.standard_normal())
        times.observe(seconds, (), rows, cores)


def test_runs_on_unmeasured_cores_are_learnt_there_and_hardly_elsewhere() -> None:
    times = CorrectedTimes(amdahl_table((1, 2)))
    for seed in range(40):
        run_on(times, 1, 1.0, batches=5, seed=seed)
        run_on(times, 4, 1.4, batches=5, seed=seed)
    law = amdahl_table((1, 2, 4))
    for rows in (1, 4, 8):
        assert times.of(rows, 4).expected == pytest.approx(1.4 * law.expected(rows, 4), rel=0.12)
        assert times.of(rows, 1).expected == pytest.approx(law.expected(rows, 1), rel=0.12)


def test_the_model_follows_live_batches_to_core_counts_that_never_ran() -> None:
    times = CorrectedTimes(amdahl_table((1, 2)))
    before = times.of(4, 8).expected
    assert before == times.of(4, 4).expected  # out of reach
    run_on(times, 1, 1.0)
    run_on(times, 4, 1.0)
    law = amdahl_table((3, 8))
    assert times.of(4, 8).expected == pytest.approx(law.expected(4, 8), rel=0.1)
    assert times.of(4, 8).expected < before
    run_on(times, 4, 1.3)  # four cores help less from now on
    assert times.of(4, 8).expected > 1.1 * law.expected(4, 8)
    assert times.of(4, 3).expected > 1.05 * law.expected(4, 3)


def test_the_first_batch_on_unmeasured_cores_moves_nothing_by_itself() -> None:
    times, same = (CorrectedTimes(amdahl_table((1, 2, 8))) for _ in range(2))
    for corrected in (times, same):
        run_on(corrected, 2, 1.1)
    times.observe(times.of(2, 4).expected, (), 2, 4)
    for cores in (1, 2, 3, 4, 6, 8, 12):
        for rows in (1, 2, 5, 8):
            # Within what is too little to publish.
            assert times.of(rows, cores).expected == pytest.approx(
                same.of(rows, cores).expected, rel=0.02
            )
            assert times.of(rows, cores).p99 == pytest.approx(same.of(rows, cores).p99, rel=0.02)


def test_columns_that_were_learnt_survive_an_export() -> None:
    times = CorrectedTimes(amdahl_table((1, 2)))
    run_on(times, 4, 1.3)
    run_on(times, 3, 1.1)
    again = CorrectedTimes(amdahl_table((1, 2)))
    again.load(json.loads(json.dumps(times.export())))
    assert again.export() == times.export()
    assert again.of(4, 4).expected == pytest.approx(times.of(4, 4).expected, rel=0.02)
    run_on(times, 4, 1.2, batches=20)
    run_on(again, 4, 1.2, batches=20)
    assert again.export() == times.export()


@pytest.mark.parametrize("cores", [[1], [1, 2, 0], None, [2, 4]])
def test_columns_that_cannot_be_are_named(cores: object) -> None:
    data = CorrectedTimes(amdahl_table((1, 2))).export() | {"cores": cores}
    with pytest.raises(ProfileError, match=r"correction\.cores"):
        CorrectedTimes(amdahl_table((1, 2))).load(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("upper", 0.0),
        ("upper", -1.0),
        ("lower", 0.0),
        ("lower", -1.0),
        ("batches", -1),
        ("overall", math.inf),
        ("upper", math.nan),
        ("run", 0.5),
    ],
)
def test_a_correction_that_cannot_have_been_stored_is_refused(field: str, value: float) -> None:
    times = CorrectedTimes(amdahl_table((1, 2)))
    data = times.export() | {field: value}
    with pytest.raises(ProfileError, match="correction"):
        CorrectedTimes(amdahl_table((1, 2))).load(data)
    CorrectedTimes(amdahl_table((1, 2))).load(times.export())


def test_trials_settle_a_table_that_is_wrong_by_any_factor(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    before = times.of(1, 1).expected
    for _ in range(5):
        times.observe(2.0 * before, (), 1, 1)
    revision = times.revision
    times.settle(before / 50.0, (), 1, 1)
    assert times.revision > revision
    assert times.of(1, 1).expected == pytest.approx(before / 50.0)
    assert times.drift == pytest.approx(1.0 / 50.0)
    for _ in range(200):
        times.observe(before / 40.0, (), 1, 1)
    assert times.of(1, 1).expected == pytest.approx(before / 40.0, rel=0.05)
    again = CorrectedTimes(resnet)
    again.load(times.export())
    assert again.of(1, 1).expected == pytest.approx(times.of(1, 1).expected, rel=0.01)


def test_corrections_from_before_there_were_trials_are_read(resnet: LatencyTable) -> None:
    times = CorrectedTimes(resnet)
    times.observe(1.0, (), 1, 1)
    document = times.export()
    del document["base"]
    again = CorrectedTimes(resnet)
    again.load(document)
    assert again.export() == times.export()
