"""The ledger: each request ends once, and is judged by its own deadline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import OutcomeKind
from slacktide.lab.load.request_log import ENDING_OF, ENDINGS, RequestLog, Result, of_grpc, of_http
from slacktide.lab.load.schedule import Schedule


def ledger(*requests: tuple[float, float], send_deadlines: bool = True) -> RequestLog:
    """From (due, allowance) pairs."""
    count = len(requests)
    zeros = np.zeros(count, dtype=np.int64)
    return RequestLog(
        Schedule(
            np.array([due_at for due_at, _ in requests]),
            zeros,
            zeros,
            np.array([allowance for _, allowance in requests]),
        ),
        send_deadlines=send_deadlines,
    )


def test_the_deadline_counts_from_the_intended_send() -> None:
    book = ledger((1.0, 0.5), (1.0, 0.5), (1.0, np.inf))
    for _ in range(3):
        book.submit()
    book.departed(0, now=1.25)
    book.ended(0, Result.ANSWERED, now=1.5)
    book.ended(1, Result.ANSWERED, now=1.5001)
    book.ended(2, Result.ANSWERED, now=99.0)
    assert [ENDINGS[i].label for i in book.endings()] == ["on_time", "after_deadline", "on_time"]
    assert book.on_time == 2
    assert book.lateness().tolist() == pytest.approx([0.25, 0.5001, 98.0])
    assert book.latency().tolist() == pytest.approx([0.5, 0.5001, 98.0])


def test_the_remaining_time_is_in_microseconds() -> None:
    book = ledger((1.0, 0.5), (1.0, np.inf))
    assert book.departed(0, now=1.125) == 375_000
    assert book.departed(0, now=1.6) == 1  # zero would mean: no deadline
    assert book.departed(1, now=1.0) is None
    assert ledger((1.0, 0.5), send_deadlines=False).departed(0, now=1.0) is None


def test_a_request_ends_once() -> None:
    book = ledger((0.0, 1.0))
    index = book.submit()
    assert book.ended(index, Result.GAVE_UP, now=2.0)
    assert not book.ended(index, Result.ANSWERED, now=3.0)
    assert book.on_time == 0
    assert ENDINGS[book.endings()[0]].label == "gave_up"


def test_overdue_is_deadline_or_due_time_plus_patience() -> None:
    book = ledger((0.0, 1.0), (0.0, np.inf), (5.0, 1.0))
    for _ in range(3):
        book.submit()
    assert book.overdue(2.0, now=1.9) == []
    assert book.overdue(2.0, now=2.0) == [1]
    assert book.overdue(2.0, now=3.0) == [0, 1]


def test_open_requests_cannot_be_scored() -> None:
    book = ledger((0.0, 1.0))
    book.submit()
    with pytest.raises(RuntimeError, match="request 0 has not ended"):
        book.endings()


def test_complaints_are_counted_and_bounded() -> None:
    book = ledger(*[(0.0, 1.0)] * 40)
    for number in range(40):
        detail = "busy" if number < 10 else f"busy {number}" + "x" * 1000
        book.ended(book.submit(), Result.OVERLOADED, now=0.1, detail=detail)
    errors = book.errors()
    assert len(errors) == 21
    assert sum(errors.values()) == 40
    assert errors["overloaded: busy"] == 10
    assert max(map(len, errors)) < 250


@given(st.lists(st.sampled_from(list(Result)), max_size=30))
def test_every_submitted_request_has_one_ending(results: list[Result]) -> None:
    book = ledger(*[(0.0, 1.0)] * (len(results) + 5))
    for result in results:
        book.ended(book.submit(), result, now=0.5)
    assert len(book.endings()) == len(results) == book.ended_count
    assert not book.open


def test_every_result_has_an_ending_of_the_right_kind() -> None:
    assert set(ENDING_OF) == set(Result) - {Result.ANSWERED}
    for result, index in ENDING_OF.items():
        assert ENDINGS[index].label == result.value
    assert {ending.kind for ending in ENDINGS} == set(OutcomeKind)


def test_statuses_of_both_protocols_agree() -> None:
    pairs = {
        200: "OK",
        429: "RESOURCE_EXHAUSTED",
        504: "DEADLINE_EXCEEDED",
        503: "UNAVAILABLE",
        500: "INTERNAL",
        400: "INVALID_ARGUMENT",
        404: "NOT_FOUND",
    }
    for http, grpc in pairs.items():
        assert of_http(http) is of_grpc(grpc)
    assert of_http(204) is of_http(301) is of_grpc("UNKNOWN") is Result.SERVER_ERROR
