"""How long bodies are expected to take, from those that came."""

from __future__ import annotations

import pytest

from slacktide.server.bandwidth import CLIENTS_KEPT, GUESS_BYTES_PER_S, Bandwidth


def test_a_client_never_heard_of_gets_a_guess():
    assert Bandwidth().transfer_time("a", 1_250_000) == 1_250_000 / GUESS_BYTES_PER_S


def test_a_rate_is_measured_for_each_client():
    bandwidth = Bandwidth()
    bandwidth.observe("slow", 1_000, 1.0)
    bandwidth.observe("fast", 1_000_000, 1.0)
    assert bandwidth.transfer_time("slow", 500) == 0.5
    assert bandwidth.transfer_time("fast", 500) == 0.0005


def test_a_changed_rate_is_soon_known():
    bandwidth = Bandwidth()
    bandwidth.observe("a", 1_000_000, 0.1)
    for _ in range(8):
        bandwidth.observe("a", 1_000_000, 1.0)
    assert bandwidth.transfer_time("a", 1_000_000) == pytest.approx(1.0, rel=0.03)


def test_small_bodies_say_little_of_large_ones():
    bandwidth = Bandwidth()
    bandwidth.observe("a", 10_000_000, 1.0)
    bandwidth.observe("a", 100, 0.001)  # a hundredth of the rate, had it any weight
    assert bandwidth.transfer_time("a", 10_000_000) == pytest.approx(1.0, rel=0.01)


def test_nothing_is_learnt_from_nothing():
    bandwidth = Bandwidth()
    bandwidth.observe("a", 0, 1.0)
    bandwidth.observe("a", 100, 0.0)
    assert bandwidth.transfer_time("a", 100) == 100 / GUESS_BYTES_PER_S


def test_the_clients_heard_of_longest_ago_are_forgotten():
    bandwidth = Bandwidth()
    for number in range(CLIENTS_KEPT + 1):
        bandwidth.observe(str(number), 100, 1.0)
    assert bandwidth.transfer_time("0", 100) == 100 / GUESS_BYTES_PER_S
    assert bandwidth.transfer_time("1", 100) == 1.0
