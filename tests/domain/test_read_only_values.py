"""What is made for each request is what a frozen dataclass is, but for the guard at run time.

That the type checker guards it: assigned.py."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from slacktide.domain import Announced, Answer, Notice, Outcome, Reason, Request, Submitted
from slacktide.lab.simulation import DrawnRequest

ONE = Request(1, "m", 0.5, 2.0, work_hint=3.0)
VALUES = [
    ONE,
    DrawnRequest(1, "m", 0.5, 2.0, length=4.0),
    Announced(Notice(1, "m", 0.5, 2.0, 10, 1.0)),
    Submitted(ONE),
    Outcome(Reason.ON_TIME, 1.5, detail="d"),
    Answer(Reason.ON_TIME, 1.5, id=1, cause=7),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_it_is_equal_hashable_and_replaced_by_its_fields(value):
    again = dataclasses.replace(value)
    assert again == value
    assert hash(again) == hash(value)
    assert repr(value) == repr(again)
    assert repr(value).startswith(f"{type(value).__name__}(")
    assert not hasattr(value, "__dict__")


def test_its_constructor_takes_what_is_declared():
    parameters = inspect.signature(Request).parameters
    assert list(parameters) == [field.name for field in dataclasses.fields(Request)]
    assert Request(1, "m", 0.0, 1.0) == Request(id=1, model="m", arrival=0.0, deadline=1.0, rows=1)
    with pytest.raises(TypeError, match=r"missing .*argument:? 'deadline'"):
        Request(1, "m", 0.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"rows": 0}, "rows must be at least 1, got 0"),
        ({"deadline": float("inf")}, "arrival and deadline must be finite"),
        ({"penalty": 0.0}, "penalty must be positive"),
    ],
)
def test_a_request_from_outside_is_checked(changed, complaint):
    ONE.check()
    with pytest.raises(ValueError, match=complaint):
        dataclasses.replace(ONE, **changed).check()


def test_it_has_no_fields_beside_the_declared_ones():
    with pytest.raises(AttributeError):
        ONE.colour = "red"  # type: ignore[attr-defined]
