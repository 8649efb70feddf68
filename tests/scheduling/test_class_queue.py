"""`ClassQueue` against lists that are sorted anew each time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Request
from slacktide.profiles import BatchLatency, RunClasses
from slacktide.scheduling import SlackOptions
from slacktide.scheduling import class_queue as class_queue_module
from slacktide.scheduling.class_queue import ClassQueue
from slacktide.scheduling.class_tables import ClassTables, ClassWorkAhead, least_share
from slacktide.scheduling.queue import DeadlineQueue, by_class

SIGNATURES = [(), ((3,),)]
NAMES = "abcd"


def snapshot(order: str, *, classes: int = 3) -> RunClasses:
    """Applications in this order of class, the last of which is everybody else's too."""
    grid = np.linspace(0.0, 1.0, 96)
    return RunClasses(
        BatchLatency(1.0, 1.0),
        0.1,
        np.tile(grid, (classes, 1)),
        tuple(float(g) for g in range(classes)),
        (1.0 / classes,) * classes,
        {(name, -1): min(g, classes - 1) for g, name in enumerate(order)},
        classes - 1,
    )


SNAPSHOTS = [snapshot("abc"), snapshot("bca"), snapshot("ab", classes=2), snapshot("abc")]
TABLES = [ClassTables(classes, limit=8, options=SlackOptions()) for classes in SNAPSHOTS]

fields = st.tuples(
    st.integers(0, 12),  # deadline: few values, so that ties are common
    st.integers(1, 2),
    st.sampled_from([1.0, 4.0]),
    st.sampled_from(SIGNATURES),
    st.sampled_from(NAMES),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), fields),
        st.tuples(st.just("add"), fields),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 40), max_size=6)),
        st.tuples(st.just("sort"), st.sampled_from(SNAPSHOTS)),
    ),
    max_size=40,
)


def check_against(
    queue: DeadlineQueue, index: ClassQueue, classes: RunClasses, naive: list[Request]
) -> None:
    naive.sort(key=lambda request: (request.deadline, request.id))
    for signature in SIGNATURES:
        group = [request for request in naive if request.signature == signature]
        if not group:
            with pytest.raises(KeyError):
                index.group(signature)
            continue
        prefixes = index.group(signature)
        assert len(prefixes) == len(group)
        assert prefixes.rows == sum(request.rows for request in group)
        assert len(prefixes.entries) == len(classes)
        for m in range(len(classes)):
            expected = [request for request in group if classes.class_of(request) <= m]
            assert [entry[2] for entry in prefixes.entries[m]] == expected
            assert list(prefixes.deadlines[m]) == [request.deadline for request in expected]
            kinds = [index.kinds[code] for code in prefixes.codes[m]]
            assert kinds == [(classes.class_of(r), r.rows, r.penalty) for r in expected]
    kinds = {((r.rows, classes.class_of(r)), r.penalty) for r in naive}
    assert {kind: [entry[2] for entry in part] for kind, part in queue.kinds.parts.items()} == {
        kind: [r for r in naive if ((r.rows, classes.class_of(r)), r.penalty) == kind]
        for kind in kinds
    }
    tables = TABLES[[snapshot is classes for snapshot in SNAPSHOTS].index(True)]
    for of in range(len(classes)):
        ahead = ClassWorkAhead(of, queue, [least_share(tables, g) for g in range(of + 1)])
        expected = sum(
            r.rows * share(classes, classes.class_of(r)) / share(classes, of)
            for r in naive
            if classes.class_of(r) <= of and r.deadline <= 5.0 and r.penalty >= 4.0
        )
        assert ahead.rows_due(5.0, 4.0) == pytest.approx(expected)


def share(classes: RunClasses, of: int) -> float:
    """Least of a lane that a row takes: its part of the fullest batch's start, and its length."""
    return 1.0 / 8 + classes.means[of]


@given(steps, st.sampled_from([0, 4096]))
def test_it_is_what_sorting_gives(steps, crowded: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_queue_module, "CROWDED", crowded)
        classes = SNAPSHOTS[0]
        queue = DeadlineQueue()
        index: ClassQueue | None = None
        naive: list[Request] = []
        for id, (step, argument) in enumerate(steps):
            if step == "add":
                deadline, rows, penalty, signature, name = argument
                request = Request(
                    id=id,
                    model="m",
                    arrival=0.0,
                    deadline=float(deadline),
                    rows=rows,
                    penalty=penalty,
                    signature=signature,
                    application=name,
                )
                queue.add(request)
                naive.append(request)
            elif step == "remove":
                queue.remove(argument)
                naive = [request for request in naive if request.id not in argument]
            else:
                classes = argument
                index = queue.index = ClassQueue(classes, queue.order)
                queue.sort_by(by_class(index.class_of))
            if index is not None:
                check_against(queue, index, classes, naive)


def test_codes_that_nobody_has_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties may be any number; what is kept of them is bounded by who is here."""
    monkeypatch.setattr(class_queue_module, "CROWDED", 8)
    queue = DeadlineQueue()
    index = queue.index = ClassQueue(SNAPSHOTS[0], queue.order)
    for id in range(1000):
        queue.add(Request(id=id, model="m", arrival=0.0, deadline=1.0, penalty=1.0 + id))
        queue.remove((id - 2,))
    assert len(index.kinds) < 20
