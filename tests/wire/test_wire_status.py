"""No reason is without a status, and the table is written out here once more."""

from __future__ import annotations

import math

import grpc
import pytest

from slacktide.domain import Outcome, OutcomeKind, Reason
from slacktide.wire.status import (
    CONTROL_STATUS,
    MOST_MICROSECONDS,
    STATUS,
    WireStatus,
    numbers_of,
    status_of,
)

BY_KIND = {
    OutcomeKind.SERVED: {200},
    OutcomeKind.LATE: {200},
    OutcomeKind.DROPPED: {504},
    OutcomeKind.REJECTED: {400, 404, 413, 422, 429, 503},
    OutcomeKind.FAILED: {500},
    OutcomeKind.CANCELLED: {408, 499},
}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_status_that_suits_its_kind(reason: Reason):
    status = status_of(reason)
    assert status.http in BY_KIND[reason.kind]
    assert status.grpc in grpc.StatusCode.__members__


def test_the_table_holds_nothing_else():
    assert set(STATUS) == set(Reason)


@pytest.mark.parametrize("reason", list(Reason))
def test_strict_compatibility_turns_overload_and_lateness_into_503(reason: Reason):
    usual, strict = status_of(reason), status_of(reason, triton_strict=True)
    if usual.http in (429, 504):
        assert strict == WireStatus(503, "UNAVAILABLE")
    else:
        assert strict == usual


def test_a_discarded_late_result_is_a_missed_deadline():
    assert status_of(Reason.AFTER_DEADLINE, has_result=False).http == 504
    assert status_of(Reason.AFTER_DEADLINE, has_result=True).http == 200
    assert status_of(Reason.AFTER_DEADLINE, has_result=False, triton_strict=True).http == 503


@pytest.mark.parametrize("seconds", [1e13, -1e13, 1e300, math.inf, -math.inf, math.nan])
def test_numbers_of_a_refusal_fit_every_reader_of_json(seconds: float):
    outcome = Outcome(Reason.EXPIRED, 0.0, budget_s=seconds, needed_s=-seconds, wait_s=seconds)
    numbers = numbers_of(outcome)
    assert set(numbers) == {"budget_us", "needed_us", "queue_us"}
    assert max(map(abs, numbers.values())) <= MOST_MICROSECONDS == 2**53 - 1


def test_control_errors_map_to_known_grpc_codes():
    for status in CONTROL_STATUS.values():
        assert status.grpc in grpc.StatusCode.__members__
        assert 400 <= status.http <= 503
