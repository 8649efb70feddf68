"""When a request is due: the smallest that was sent, the model's own, or best effort."""

from __future__ import annotations

import pytest

from slacktide.models.repository.settings import ModelSettings
from slacktide.server.calls.descriptors import best_effort_due, due
from slacktide.wire.calls import CallContext
from slacktide.wire.parameters import CallOptions


def at(options=None, budget=None, *, announced=False, **settings):
    stated = ModelSettings.model_validate(settings)
    context = CallContext(100.0, "client", "http", budget)
    slo = None if announced else stated.slo
    return due(context, options or CallOptions(), stated, slo)


@pytest.mark.parametrize(
    ("timeout", "transport", "expected"),
    [(0.5, None, 100.5), (None, 0.3, 100.3), (0.5, 0.3, 100.3), (0.2, 0.3, 100.2)],
)
def test_the_smallest_that_was_sent_counts_from_the_first_byte(timeout, transport, expected):
    assert at(CallOptions(timeout_s=timeout), transport) == expected


def test_without_any_the_models_slo_counts():
    assert at(slo="2s") == 102.0


def test_a_sent_deadline_wins_over_the_models_slo_even_if_it_is_longer():
    assert at(CallOptions(timeout_s=5.0), slo="2s") == 105.0


def test_nothing_is_longer_than_max_slo():
    assert at(CallOptions(timeout_s=50.0), max_slo="3s") == 103.0
    assert at(max_slo="3s") == 103.0


def test_a_deadline_shorter_than_max_slo_stays_as_it_was_sent():
    assert at(CallOptions(timeout_s=1.0), max_slo="3s") == 101.0
    assert at(CallOptions(timeout_s=3.0), max_slo="3s") == 103.0
    assert at(slo="2s", max_slo="3s") == 102.0
    assert at(budget=0.5, max_slo="3s") == 100.5


def test_time_spent_on_the_network_is_gone():
    assert at(CallOptions(timeout_s=1.0, network_s=0.4)) == pytest.approx(100.6)


def test_while_the_body_is_on_its_way_it_may_still_name_a_longer_one_than_the_models():
    assert at(slo="2s", announced=True) is None
    assert at(budget=0.3, slo="2s", announced=True) == 100.3
    assert at(slo="2s", max_slo="3s", announced=True) == 103.0


@pytest.mark.parametrize(("p99", "expected"), [(0.01, 101.0), (0.5, 105.0)])
def test_with_neither_it_is_best_effort_in_a_window_of_its_own(p99, expected):
    assert at() is None
    assert best_effort_due(CallContext(100.0, "client", "http"), p99) == expected
