"""The requests of a run: what they share, how they are scaled, what Table 1 is fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from slacktide_papers.harness.state import ReproduceError
from slacktide_papers.orloj.cases import GAIN_CASES, SYNTHETIC, lengths_of, workload_of
from slacktide_papers.orloj.published import TASKS, cases
from slacktide_papers.orloj.setting import ALONE_MS, SETTINGS, draw_requests

P = SETTINGS["P"]


def test_the_settings_are_those_that_were_calibrated():
    latency = P.latency(6.0)
    assert (latency.c0, latency.c1 * 10.0) == pytest.approx((5.0, 1.0))
    assert latency.sizes == (1, 2, 4, 8, 16)
    assert P.fixed_share == pytest.approx(5 / 6)
    arrivals = P.arrivals(6.0)
    assert arrivals.rate == pytest.approx(1.3 / 6.0)
    assert arrivals.window == pytest.approx(600.0)
    assert arrivals.cv == 0.35
    q = SETTINGS["Q"]
    assert q.latency(2.0).c0 == pytest.approx(1.0)
    assert q.arrivals(2.0).rate == pytest.approx(0.5)


def test_every_printed_case_has_lengths():
    for table in ("table-2", "table-3", "table-4", "table-5"):
        for case in cases(table):
            assert lengths_of(case, P.fixed_share).mean > 0.0
    assert len(GAIN_CASES) == 13
    with pytest.raises(ReproduceError, match=r"unknown case 'nine-modal'; there are: std-0\.5"):
        lengths_of("nine-modal", 0.5)


def test_modes_are_where_the_cases_say():
    eight = SYNTHETIC["eight-modal"].modes
    assert [mode.mean for mode in eight] == pytest.approx([3, 5, 7, 9, 11, 13, 15, 17])
    assert {mode.sigma for mode in eight} == {1.0}
    assert [mode.mean for mode in SYNTHETIC["one-modal"].modes] == [10.0]
    short, long = SYNTHETIC["std-2/0.5"].modes
    assert (short.mean, short.sigma, short.weight) == (3.0, 2.0, 0.9)
    assert (long.mean, long.sigma, long.weight) == (17.0, 0.5, 0.1)
    short, long = SYNTHETIC["std-0.5/2"].modes
    assert (short.sigma, short.weight, long.sigma, long.weight) == (0.5, 0.1, 2.0, 0.9)


def test_cases_printed_twice_are_run_once():
    assert workload_of("std-1") == "two-modal"
    assert {workload_of(case) for case in cases("table-4")} == {"static"}
    assert workload_of("std-2") == "std-2"


@pytest.mark.parametrize("setting", ["P", "Q"])
@pytest.mark.parametrize("case", TASKS)
def test_a_real_task_has_the_mean_and_the_p99_of_table_1(setting, case):
    share = SETTINGS[setting].fixed_share
    lengths = lengths_of(case, share)
    task = TASKS[case]
    assert lengths.mean == pytest.approx(10.0, rel=1e-3)

    def alone_ms(length: float) -> float:
        return task.mean_ms * (share + (1.0 - share) * length / 10.0)

    assert alone_ms(lengths.quantile(0.99)) == pytest.approx(task.p99_ms, rel=1e-3)


def test_cases_share_their_arrivals_and_seeds_do_not():
    first = draw_requests(P, "one-modal", seed=1, requests=300)
    second = draw_requests(P, "std-2/0.5", seed=1, requests=300)
    again = draw_requests(P, "one-modal", seed=1, requests=300)
    assert np.array_equal(first.arrivals, second.arrivals)
    assert np.array_equal(first.lengths, again.lengths)
    assert not np.array_equal(
        first.arrivals, draw_requests(P, "one-modal", seed=2, requests=300).arrivals
    )
    assert first.arrivals.size == first.lengths.size == len(first.applications) == 300
    assert np.all(np.diff(first.arrivals) >= 0.0)


def test_a_sample_says_what_was_seen_before_and_how_long_p99_is():
    two = draw_requests(P, "std-2/0.5", seed=1, requests=2_000)
    assert {name: values.size for name, values in two.training.items()} == {
        "short": 4_000,
        "long": 4_000,
    }
    assert two.shares == {"short": 0.9, "long": 0.1}
    assert two.alone == pytest.approx(ALONE_MS / 1e3)
    long = np.quantile(two.lengths, 0.99) / 10.0
    assert two.p99_alone == pytest.approx(two.alone * (5.0 + long) / 6.0)


def test_times_scale_with_a_p99_that_is_given():
    plain = draw_requests(P, "three-modal", seed=1, requests=300)
    short = draw_requests(P, "three-modal", seed=1, requests=300, p99_ms=20.0)
    assert short.p99_alone == pytest.approx(0.02)
    scale = 0.02 / plain.p99_alone
    assert short.arrivals == pytest.approx(plain.arrivals * scale)
    assert short.latency.c0 == pytest.approx(plain.latency.c0 * scale)
    assert np.array_equal(short.lengths, plain.lengths)


def test_arrivals_follow_a_trace_at_the_load_of_the_setting():
    trace = (0.0, 1.0, 4.0, 3.0)
    requests = draw_requests(P, "one-modal", seed=1, requests=5_200, trace=trace)
    windows = (requests.arrivals // (100.0 * requests.alone)).astype(int)
    counts = np.bincount(windows)[:36].reshape(-1, 4)  # nine rounds, the last may be cut off
    silent = int(np.argmin(counts.sum(axis=0)))
    in_order = np.roll(counts.mean(axis=0), -silent)
    assert in_order[0] == 0.0
    assert in_order[1:] == pytest.approx([65.0, 260.0, 195.0], rel=0.1)
