"""`DeadlineQueue` against a list that is sorted anew each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Request
from slacktide.scheduling.queue import DeadlineQueue, within_rows

SIGNATURES = [(), ((3,),), ((4,),)]
LEAD = (0.0, 1.0, 1.5, 2.5)

fields = st.tuples(
    st.integers(0, 12),  # deadline: few values, so that ties are common
    st.integers(1, 3),
    st.sampled_from([1.0, 4.0]),
    st.sampled_from(SIGNATURES),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), fields),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 40), max_size=6)),
        st.tuples(st.just("take"), st.tuples(st.integers(0, 3), st.integers(0, 6))),
        st.tuples(st.just("expire"), st.integers(0, 12)),
    ),
    max_size=40,
)


def check_against(queue: DeadlineQueue, naive: list[Request]) -> None:
    naive.sort(key=lambda request: (request.deadline, request.id))
    assert list(queue) == naive
    assert len(queue) == len(naive)
    assert queue.rows == sum(request.rows for request in naive)
    for signature in SIGNATURES:
        assert [entry[2] for entry in queue.batchable(signature)] == [
            request for request in naive if request.signature == signature
        ]
    earliest = list(dict.fromkeys(request.signature for request in naive))[:2]
    assert [group[0][2].signature for group in queue.groups(2)][:2] == earliest
    for deadline in (0.0, 5.0, 12.0):
        for penalty in (1.0, 2.0, 4.0):
            assert queue.rows_due(deadline, penalty) == sum(
                request.rows
                for request in naive
                if request.deadline <= deadline and request.penalty >= penalty
            )
    assert queue.uniform == (
        {(request.rows, request.penalty) for request in naive} in ({(1, 1.0)}, {(1, 4.0)})
        and len({request.signature for request in naive}) == 1
    )
    latest_starts = [request.deadline - LEAD[request.rows] for request in naive]
    assert queue.next_expiry(LEAD) == min(latest_starts, default=None)


@given(steps)
def test_it_equals_a_sorted_list(script: list[tuple[str, object]]) -> None:
    queue = DeadlineQueue()
    naive: list[Request] = []
    for id, (step, argument) in enumerate(script):
        if step == "add":
            deadline, rows, penalty, signature = argument
            request = Request(
                id=id,
                model="m",
                arrival=0.0,
                deadline=float(deadline),
                rows=rows,
                penalty=penalty,
                signature=signature,
            )
            queue.add(request)
            naive.append(request)
        elif step == "remove":
            ids = list(dict.fromkeys(argument))
            left = [request for request in naive if request.id not in ids]
            assert queue.remove(ids) == len(naive) - len(left)
            naive = left
        elif step == "take":
            # A run of the order, mostly its start; now and then not all of it is there.
            naive.sort(key=lambda request: (request.deadline, request.id))
            first, count = argument
            gone = naive[first : first + count]
            strangers = [Request(id=1000, model="m", arrival=0.0, deadline=5.0)][: count % 2]
            assert queue.take([*gone, *strangers]) == len(gone)
            naive = [request for request in naive if request not in gone]
        else:
            now = float(argument)
            naive.sort(key=lambda request: (request.deadline, request.id))
            gone = [r for r in naive if r.deadline - LEAD[r.rows] <= now]
            assert queue.expire(LEAD, now=now) == gone
            naive = [request for request in naive if request not in gone]
        check_against(queue, naive)


def test_a_request_waits_in_one_place_only(lab) -> None:
    queue = DeadlineQueue()
    queue.add(lab.request(1, 2.0))
    with pytest.raises(ValueError, match="1 is already queued"):
        queue.add(lab.request(1, 3.0))


def test_an_expired_request_is_not_announced_twice(lab) -> None:
    """`next_expiry` and `expire` agree to the last bit, or a driver would wake for nothing."""
    queue = DeadlineQueue()
    lead = (0.0, 0.1)
    for id in range(200):
        queue.add(lab.request(id, 0.1 + id * 0.7 / 3))
    while (due := queue.next_expiry(lead)) is not None:
        assert queue.expire(lead, now=due)


def test_filling_passes_over_what_does_not_fit(lab) -> None:
    requests = [lab.request(id, float(id), rows=rows) for id, rows in enumerate([3, 4, 2, 1, 1])]
    entries = [(request.deadline, request.id, request) for request in requests]
    assert [request.id for request in within_rows(entries, 6)] == [0, 2, 3]


def test_kinds_told_apart_otherwise_are_timed_anew(lab) -> None:
    """By the same table, and though nothing has come or gone."""
    queue = DeadlineQueue()
    for id, application in enumerate("aab"):
        queue.add(lab.request(id, 1.0 + id, rows=1 + id % 2, application=application))
    lead = {1: 0.1, 2: 0.2, "a": 0.5, "b": 2.9}
    assert queue.next_expiry(lead) == pytest.approx(0.9)
    queue.sort_by(lambda request: (request.application, request.penalty))
    assert queue.next_expiry(lead) == pytest.approx(0.1)
