"""How many replicas carry a steady load."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.harness import model_view

from slacktide.planning.scaling import ScalingLimits
from slacktide.planning.scaling.forecast import replicas_needed, with_headroom

SECONDS = [0.0, 0.055, 0.097, 0.139, 0.181]  # Sponge Table 1 on one core, carried on


loads = st.tuples(st.floats(0.0, 2000.0), st.floats(0.05, 5.0))


def test_by_hand():
    # Four rows in 0.181 s are 22.1 a second: 100 need five, and 1.2 · 0.181 s are there.
    assert replicas_needed(100.0, 1.0, SECONDS, 4) == 5
    # In 0.13 s no batch of two fits even with five (1.2 · 0.097 fits, 20.6 a second: five).
    assert replicas_needed(100.0, 0.13, SECONDS, 4) == 5
    assert replicas_needed(100.0, 0.1, SECONDS, 4) == 6  # single rows: 18.2 a second
    assert replicas_needed(100.0, 0.05, SECONDS, 4) == 0  # not even one row
    assert replicas_needed(0.0, math.inf, SECONDS, 4) == 1


@given(load=loads, more=st.floats(1.0, 3.0))
def test_more_load_or_shorter_budgets_never_need_fewer(load, more):
    rate, budget = load
    needed = replicas_needed(rate, budget, SECONDS, 4)
    if needed:
        assert needed <= replicas_needed(rate * more, budget, SECONDS, 4)
        shorter = replicas_needed(rate, budget / more, SECONDS, 4)
        assert shorter == 0 or needed <= shorter


@given(load=loads, headroom=st.floats(0.0, 5.0))
def test_room_shrinks_with_the_budget(load, headroom):
    rate, budget = load
    view = model_view(None, ScalingLimits(), rate=9.0, budget=1.0, burst=6.0)  # D = 4
    assert with_headroom(rate, math.inf, view, headroom) == rate
    room = with_headroom(rate, budget, view, headroom)
    assert room == pytest.approx(rate + headroom * 2.0 * math.sqrt(rate / budget))
    assert room <= with_headroom(rate, budget / 2, view, headroom)
