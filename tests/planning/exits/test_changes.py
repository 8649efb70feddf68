"""How soon changes of the model's answer reach the client, and what that allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.planning.exits.changes import WINDOW, WITHIN, Changes, FollowedFrame


def add(
    changes: Changes,
    answers: Sequence[int],
    given_answers: Sequence[int],
    *,
    first: int = 1,
    session: int = 1,
    distance: float = 0.1,
    refreshed: bool = False,
) -> list[bool]:
    """Add frames with the model's answers and those that the client got; what is remembered is
    wrong where the client's answer is."""
    return [
        changes.add(
            FollowedFrame(
                session, at, answer, answer == given, distance, answer == given, refreshed
            )
        )
        for at, (answer, given) in enumerate(zip(answers, given_answers, strict=True), first)
    ]


@pytest.mark.parametrize(
    ("answers", "given_answers", "delay", "lasts"),
    [
        ([0, 1, 1, 1], [0, 1, 1, 1], 0, True),
        ([0, 1, 1, 1], [0, 0, 1, 1], 1, True),
        ([0, 1, 1, 1], [0, 0, 0, 1], 2, True),
        ([0, 1, 1, 1, 1], [0, 0, 0, 0, 1], None, True),
        ([0, 1, 0, 0], [0, 0, 0, 0], None, False),  # the client never got answer 1
        ([0, 1, 1, 0], [0, 0, 1, 0], 1, False),
    ],
)
def test_the_delay_counts_frames_until_the_client_gets_the_answer(
    answers, given_answers, delay, lasts
):
    changes = Changes(9)
    add(changes, answers, given_answers)
    first = changes.window[0]
    assert (first.delay, first.lasts) == (delay, lasts)
    assert changes.missed >= (delay is None)


def test_a_change_counts_only_if_all_its_frames_were_judged():
    changes = Changes(9)
    add(changes, [0, 1], [0, 0])
    add(changes, [1, 1], [1, 1], first=4)  # frame 3 is missing
    add(changes, [5, 6], [5, 6], session=2)
    assert changes.added == 0
    assert changes.caught is None
    assert changes.delay_p95 is None
    add(changes, [6], [6], session=2, first=3)
    assert changes.added == 0
    assert add(changes, [6], [6], session=2, first=4) == [False]
    assert changes.added == 1
    assert changes.caught == 1.0
    assert changes.delay_p95 == 0


def test_missed_changes_are_told_as_soon_as_they_are_known():
    changes = Changes(9)
    assert add(changes, [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]) == [False, False, False, True, False]
    assert changes.caught == 0.0
    assert changes.delay_p95 == WITHIN + 1


def limit(changes: Changes) -> float:
    return min((float(guard.highest()[1]) for guard in changes.guards(1, 3)), default=math.inf)


def test_thresholds_keep_clear_of_changes_that_memory_would_hide():
    changes = Changes(9)
    for number in range(40):
        distance = 0.01 * (number + 1)
        add(changes, [0, 1, 1, 1], [0, 0, 0, 0], session=number + 1, distance=distance)
    # Of 40 changes two may be hidden (80 % sure of a tenth); of lasting ones none.
    assert limit(changes) == pytest.approx(0.01)
    for guard in changes.guards(1, 3):
        assert guard.holds(np.array([9.0, 0.01, 9.0]))
        assert not guard.holds(np.array([0, 0.2, 0]))


@pytest.mark.parametrize(("frames", "refreshed"), [(2, False), (9, True)])
def test_a_lasting_change_is_safe_where_memory_cannot_hide_it_for_long(frames, refreshed):
    changes = Changes(frames)
    add(changes, [0, 1, 1, 1], [0, 0, 1, 1], refreshed=refreshed)
    assert limit(changes) == math.inf
    add(changes, [0, 1, 0, 0], [0, 0, 0, 0], session=2, refreshed=refreshed)
    assert limit(changes) == pytest.approx(0.1)  # a flicker may still be lost


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans()), max_size=300),
    st.integers(1, 20),
)
def test_counts_agree_with_what_a_list_of_all_frames_says(frames, remember):
    changes, frames_of, at = (
        Changes(remember),
        dict[int, list[tuple[int, bool]]](),
        dict[int, int](),
    )
    for session, answer, right in frames:
        at[session] = at.get(session, 0) + 1
        changes.add(FollowedFrame(session, at[session], answer, right, 0.5, False, False))
        frames_of.setdefault(session, []).append((answer, right))
    added = missed = 0
    for rows in frames_of.values():
        for place in range(1, len(rows) - WITHIN):
            answer = rows[place][0]
            if answer == rows[place - 1][0]:
                continue
            added += 1
            held = [right for of, right in rows[place : place + WITHIN + 1] if of == answer]
            lasts = 0
            while lasts <= WITHIN and rows[place + lasts][0] == answer:
                lasts += 1
            held = [right for _, right in rows[place : place + lasts]]
            missed += not any(held)
    assert (changes.added, changes.missed) == (added, missed)
    assert len(changes.window) == min(added, WINDOW)
