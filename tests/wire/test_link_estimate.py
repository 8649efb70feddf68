"""What is believed of a client's link and of its frames' sizes, from those that came."""

from __future__ import annotations

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.lab.workloads import BandwidthTrace, SharedLink, TraceLink
from slacktide.wire.link_estimate import (
    GUESS_BYTES_PER_S,
    HALF_LIFE_S,
    MAX_CLIENTS,
    BytesPerPixel,
    LinkEstimate,
    LinkEstimates,
)

MBIT = 125_000.0


def settled(rate: float, *, frames: int = 20, nbytes: int = 20_000) -> LinkEstimate:
    """After that many frames at 10 a second; the last ended at 0."""
    link = LinkEstimate()
    for number in range(frames):
        link.observe(nbytes, nbytes / rate, now=(number + 1 - frames) / 10)
    return link


def test_an_unknown_link_is_guessed_and_a_guess_may_be_set():
    link = LinkEstimate()
    assert link.bytes_per_s(now=0.0) == GUESS_BYTES_PER_S
    assert not link.measured
    link.guess = 1e6
    assert link.transfer_time(500_000, now=1.0) == 0.5


@pytest.mark.parametrize("after", [20.0, 10.0, 5.0, 2.0, 0.5])
@pytest.mark.parametrize("before", [20.0, 4.0, 1.0])
def test_two_seconds_after_a_change_it_is_within_15_percent(before: float, after: float):
    link = SharedLink(
        TraceLink(BandwidthTrace([0.0, 20.0], [before * MBIT, after * MBIT], period=40.0), rtt=0.02)
    )
    estimate, size = LinkEstimate(), 12_000
    now = 0.0
    while now < 22.0:  # a client that keeps about to what the link carries
        rate = estimate.bytes_per_s(now=now)
        size = max(4_000, min(60_000, int(0.7 * rate / 10)))
        delivery = link.deliver(size, sent=now)
        estimate.observe(
            size, delivery.complete_at - delivery.arrival, now=max(now, delivery.complete_at)
        )
        now = max(now + 0.1, delivery.complete_at)
    assert estimate.bytes_per_s(now=now) == pytest.approx(after * MBIT, rel=0.15)


def test_noise_leaves_the_estimate_a_little_below_the_mean():
    link = LinkEstimate()
    for number in range(40):
        factor = (0.8, 1.25, 1.0, 0.9, 1.1)[number % 5]
        link.observe(20_000, 20_000 * factor / 1e6, now=number / 10)
        if number > 20:
            assert 0.75e6 <= link.bytes_per_s(now=number / 10) <= 1.02e6


def test_a_transfer_that_was_slower_than_expected_is_believed_at_once():
    link = settled(2e6)
    assert not link.observe(60_000, 60_000 / 1.4e6, now=0.1)  # no fall, and yet
    assert link.bytes_per_s(now=0.1) == pytest.approx(1.4e6, rel=0.03)
    link.observe(60_000, 60_000 / 2e6, now=0.2)
    assert link.bytes_per_s(now=0.2) < 1.9e6  # faster again is not


def test_a_fall_is_reported_once_and_makes_the_past_worthless():
    link = settled(4e6)
    assert link.observe(20_000, 20_000 / 1e6, now=0.1)
    assert link.bytes_per_s(now=0.1) == pytest.approx(1e6)
    assert not link.observe(20_000, 20_000 / 1e6, now=0.2)


def test_a_rise_is_no_fall_and_comes_within_the_second():
    link = settled(1e6)
    rises = [link.observe(20_000, 20_000 / 4e6, now=number / 10) for number in range(1, 13)]
    assert not any(rises)
    assert link.bytes_per_s(now=1.2) == pytest.approx(4e6, rel=0.05)


def test_small_payloads_show_only_promptness():
    link = settled(1e6)
    for number in range(10):
        assert not link.observe(100, 0.01, now=0.01 * number)  # a hundredth of the rate
    assert link.bytes_per_s(now=0.1) == pytest.approx(1e6, rel=0.001)
    fast = settled(1e6)
    for number in range(10):
        fast.observe(2_000, 1e-6, now=0.01 * number)  # two packets, at once
    assert fast.bytes_per_s(now=0.1) == pytest.approx(1e6, rel=0.11)


def test_a_transfer_in_progress_shows_a_fall_before_its_end():
    link = settled(1e6)
    assert not link.silent(20_000, 0.02, now=0.1)
    assert link.bytes_per_s(now=0.1) == pytest.approx(1e6)
    assert link.silent(20_000, 0.2, now=0.3)
    assert link.bytes_per_s(now=0.3) == pytest.approx(1e5)
    assert not link.silent(20_000, 0.25, now=0.35)
    assert link.silent(20_000, 0.5, now=0.6)
    assert not link.observe(20_000, 0.5, now=0.6)
    assert link.bytes_per_s(now=0.6) == pytest.approx(4e4)


def test_a_learnt_rate_gives_way_to_the_guess_in_a_long_silence():
    link = settled(1e6)
    assert link.bytes_per_s(now=1.0) == pytest.approx(1e6)
    assert link.bytes_per_s(now=10.0) == pytest.approx(1e6, rel=0.06)
    half = (1e6 * GUESS_BYTES_PER_S) ** 0.5
    assert link.bytes_per_s(now=1.0 + HALF_LIFE_S) == pytest.approx(half)
    assert link.bytes_per_s(now=1e9) == pytest.approx(GUESS_BYTES_PER_S)


def test_nothing_is_learnt_from_nothing():
    link = LinkEstimate()
    for nbytes, seconds in ((0, 1.0), (-1, 1.0), (100, 0.0), (100, float("inf"))):
        assert not link.observe(nbytes, seconds, now=0.0)
    assert not link.observe(100, float("nan"), now=0.0)
    assert not link.measured


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**40),
            st.floats(allow_nan=True),
            st.floats(0.0, 100.0),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_the_rate_is_always_a_positive_number(steps):
    link, now = LinkEstimate(), 0.0
    for nbytes, seconds, later, ended in steps:
        now += later
        (link.observe if ended else link.silent)(nbytes, seconds, now=now)
        assert 0.0 < link.bytes_per_s(now=now) < float("inf")
        assert isfinite(link.transfer_time(nbytes, now=now))


@given(st.integers(4_000, 10**7), st.floats(1e3, 1e9))
def test_a_steady_link_is_soon_known(nbytes: int, rate: float):
    link = LinkEstimate()
    now = 0.0
    for _ in range(30):
        now += 0.1 + nbytes / rate
        link.observe(nbytes, nbytes / rate, now=now)
    assert link.bytes_per_s(now=now) == pytest.approx(rate, rel=0.05)


def test_each_client_has_a_link_of_its_own():
    links = LinkEstimates()
    links.observe("slow", 10_000, 1.0, now=0.0)
    links.observe("fast", 10_000_000, 1.0, now=0.0)
    assert links.transfer_time("slow", 5_000, now=0.0) == pytest.approx(0.5)
    assert links.transfer_time("fast", 5_000, now=0.0) == pytest.approx(0.0005, rel=0.01)
    assert links.transfer_time("new", 1_250_000, now=0.0) == 1_250_000 / GUESS_BYTES_PER_S


def test_the_clients_heard_of_longest_ago_are_forgotten():
    links = LinkEstimates()
    for number in range(MAX_CLIENTS + 1):
        links.observe(str(number), 10_000, 1.0, now=float(number))
    now = MAX_CLIENTS + 1.0
    assert links.transfer_time("0", 10_000, now=now) == 10_000 / GUESS_BYTES_PER_S
    assert links.transfer_time(str(MAX_CLIENTS), 10_000, now=now) == pytest.approx(1.0)


def test_the_size_of_frames_follows_a_power_of_their_pixels():
    sizes = BytesPerPixel()
    assert sizes.of(128 * 128) == pytest.approx(10_283)
    assert sizes.of(608 * 608) == pytest.approx(136_407, rel=0.02)
    sizes.observe(5_000, 128 * 128)
    assert sizes.of(128 * 128) == pytest.approx(5_000)
    assert sizes.of(608 * 608) == pytest.approx(5_000 * (608 / 128) ** 1.66, rel=0.01)


def test_raw_frames_are_learnt_once_two_sizes_have_been_seen():
    sizes = BytesPerPixel()
    for side in (128, 256, 128, 416, 256, 608):
        sizes.observe(3 * side * side, side * side)
    assert sizes.of(320 * 320) == pytest.approx(3 * 320 * 320, rel=0.05)


def test_a_scene_that_changes_is_learnt_anew():
    sizes = BytesPerPixel()
    for _ in range(50):
        sizes.observe(10_000, 65_536)
    for _ in range(50):
        sizes.observe(20_000, 65_536)
    assert sizes.of(65_536) == pytest.approx(20_000, rel=0.1)


@given(st.lists(st.tuples(st.integers(-5, 2**50), st.integers(-5, 2**50)), max_size=40))
def test_a_frame_always_has_a_size(frames):
    sizes = BytesPerPixel()
    for nbytes, pixels in frames:
        sizes.observe(nbytes, pixels)
        assert 0.0 < sizes.of(1_000) < float("inf")
    assert sizes.of(0) == 0.0
