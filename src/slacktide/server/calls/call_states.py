"""The states of a call, the steps between them, and what a call holds in each. A table, no code.

`call.py` takes the steps. A test compares `STEPS` with the diagram in docs/internals/call.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class CallState(StrEnum):
    __hash__ = str.__hash__  # Enum's own `__hash__` is written in Python

    OPEN = "open"
    """Its headers have arrived."""
    ANNOUNCED = "announced"
    """The engine has the call's notice, and may refuse the call before the body arrives."""
    RECEIVING = "receiving"
    """Its body is being written into its slot."""
    DROPPED = "dropped"
    """The engine dropped the call while its body was arriving; the answer waits for the end of the
    body."""
    SUBMITTED = "submitted"
    """The engine has its request."""
    REFUSED = "refused"
    """The data plane or the front end refused the call; the engine will count the refusal."""
    ANSWERED = "answered"
    CANCELLED = "cancelled"


class CallStep(StrEnum):
    __hash__ = str.__hash__

    ANNOUNCE = "announce"
    ACCEPT = "accept"
    """The scheduler has not refused the notice: the body may be read."""
    SUBMIT = "submit"
    REFUSE = "refuse"
    ANSWER = "answer"
    """The engine reports its outcome."""
    CANCEL = "cancel"


STEPS: Mapping[CallState, Mapping[CallStep, CallState]] = {
    CallState.OPEN: {
        CallStep.ANNOUNCE: CallState.ANNOUNCED,
        CallStep.SUBMIT: CallState.SUBMITTED,
        CallStep.REFUSE: CallState.REFUSED,
        CallStep.CANCEL: CallState.CANCELLED,
    },
    CallState.ANNOUNCED: {
        CallStep.ACCEPT: CallState.RECEIVING,
        CallStep.REFUSE: CallState.REFUSED,
        CallStep.ANSWER: CallState.ANSWERED,
        CallStep.CANCEL: CallState.CANCELLED,
    },
    CallState.RECEIVING: {
        CallStep.SUBMIT: CallState.SUBMITTED,
        CallStep.REFUSE: CallState.REFUSED,
        CallStep.ANSWER: CallState.DROPPED,
        CallStep.CANCEL: CallState.CANCELLED,
    },
    CallState.DROPPED: {
        CallStep.SUBMIT: CallState.ANSWERED,
        CallStep.REFUSE: CallState.ANSWERED,
        CallStep.CANCEL: CallState.CANCELLED,
    },
    CallState.SUBMITTED: {
        CallStep.REFUSE: CallState.REFUSED,
        CallStep.ANSWER: CallState.ANSWERED,
        CallStep.CANCEL: CallState.CANCELLED,
    },
    CallState.REFUSED: {CallStep.ANSWER: CallState.ANSWERED, CallStep.CANCEL: CallState.REFUSED},
    CallState.ANSWERED: {CallStep.CANCEL: CallState.ANSWERED},
    CallState.CANCELLED: {CallStep.CANCEL: CallState.CANCELLED},
}
"""The next state, by state and step. Any other step is a fault of the server (`CallError`)."""


class Held(StrEnum):
    """Resources that a call holds and must give back."""

    __hash__ = str.__hash__

    BODY = "one of the counted bodies that are still arriving"
    CLIENT = "a place among its client's requests"
    VERSION = "its version, which keeps its memory"


HOLDS: Mapping[CallState, frozenset[Held]] = {
    CallState.OPEN: frozenset(),
    CallState.ANNOUNCED: frozenset(Held),
    CallState.RECEIVING: frozenset(Held),
    CallState.DROPPED: frozenset((Held.VERSION, Held.BODY)),
    CallState.SUBMITTED: frozenset((Held.CLIENT, Held.VERSION)),
    CallState.REFUSED: frozenset(),
    CallState.ANSWERED: frozenset(),
    CallState.CANCELLED: frozenset(),
}


class CallError(Exception):
    """Raised for a step that a call cannot take in its state."""
