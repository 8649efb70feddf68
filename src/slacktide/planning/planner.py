"""`Planner`: the base class. A planner owns fields of the plan, sees events, writes its fields.

A plan begins with a *base*, which has the loaded models and their first lanes; each planner then
writes the fields that it owns. A (scope, field) pair has at most one owner; the composer refuses a
second one (`composer.py`).

A planner that needs more than a millisecond or two returns a job: a computation on a frozen
snapshot. Drivers run it off the loop and deliver `JobDone`; the planner writes the answer into its
fields when it is next asked. Recordings hold the resulting plans, so they replay without planners.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from slacktide.domain import Event, Plan
from slacktide.engine import Snapshot
from slacktide.planning.draft import Draft
from slacktide.planning.sessions import SessionEvent

if TYPE_CHECKING:  # avoids an import cycle
    from slacktide.planning.exits.events import ExitEvent

T = TypeVar("T")


class PlannerError(ValueError):
    """The caller's mistake: an unknown planner or option, a bad value, or two owners of one field.
    The text says which."""


class PlanField(Enum):
    """A field of the plan for one scope: a model, a family of variants, or a pipeline."""

    REPLICAS = "the number of replicas"
    LANE_CORES = "the cores of its lanes"
    PLACEMENT = "the lanes that its replicas sit on"
    VARIANTS = "which of its variants its lanes run"
    BATCH_CAPS = "the largest batch"
    WINDOWS = "when it comes first on its lanes"
    ROUTES = "which pool requests go to"
    EXITS = "early exits"
    INPUTS = "the sizes of inputs"
    PLACES = "the devices that its stages run on"


Owned: TypeAlias = tuple[str, PlanField]
"""(scope, field)."""

Stated: TypeAlias = Mapping[str, object]
"""Settings by model (several in a tuple); each planner takes the kinds it knows (`stated_as`)."""


def stated_as(kind: type[T], stated: Stated) -> dict[str, T]:
    """Return the settings of this kind, by model. A model may have several, in a tuple:
    `(ScaledModel(…), Family(…))`."""
    statements = {}
    for model, parts in stated.items():
        for statement in parts if isinstance(parts, tuple) else (parts,):
            if isinstance(statement, kind):
                statements[model] = statement
    return statements


def also(stated: object, addition: object) -> tuple[object, ...]:
    """Return the settings of a model with `addition` at their end."""
    return (*(stated if isinstance(stated, tuple) else (stated,)), addition)


@dataclass(frozen=True, slots=True)
class JobDone:
    """A planner's job has ended. Delivered with events, but the engine never sees it."""

    planner: str
    answer: object = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A computation to run off the event loop. It only touches its own input."""

    planner: str
    compute: Callable[[], object]

    def run(self) -> JobDone:
        """Compute on the calling thread. Never raises."""
        try:
            return JobDone(self.planner, self.compute())
        except Exception as error:
            return JobDone(self.planner, error=error)


class Planner(ABC):
    """A planner, with defaults for optional methods. Pure: it reads no clock."""

    name = "planner"
    """Unique within one runtime."""
    reason = ""
    """Why its last plan differs from the one before, for people; empty if it does not."""

    def owns(self, stated: Stated) -> frozenset[Owned]:
        """Return the fields that it writes if these models are served."""
        return frozenset()

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:  # noqa: B027  # optional
        """Start from `base` from now on. Scopes whose settings are unchanged keep their state. May
        raise PlannerError; then nothing has changed."""

    def observe(  # noqa: B027  # optional
        self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float
    ) -> None:
        """Take in `events`, which the engine is about to handle."""

    def observe_sessions(  # noqa: B027  # optional
        self, events: Sequence[SessionEvent], *, now: float
    ) -> None:
        """Take in events of sessions (clients that stream frames). Also called while planning is
        paused, so that planners never hold outdated sessions."""

    def observe_exits(  # noqa: B027  # optional
        self, events: Sequence[ExitEvent], *, now: float
    ) -> None:
        """Take in events of early exits. Also called while planning is paused."""

    def next_wakeup(self, snapshot: Snapshot) -> float:
        """Return the latest time to ask it again (absolute seconds); inf: only when events come."""
        return math.inf

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        """Whether it must plan now: its time has come, or a request that can be saved would miss
        its deadline under the plan in force. Asked often, so it should cost little."""
        return self.next_wakeup(snapshot) <= now

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        """Return a computation that must end before it plans, to run off the event loop; None: no
        computation is needed. `snapshot` is only valid during this call: freeze it to use it later.
        Not called again before the job is done."""
        return None

    def meanwhile_at(self) -> float:
        """Return when it must plan even if its job still runs (absolute seconds); inf: not before
        the job is done."""
        return math.inf

    @abstractmethod
    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        """Return `draft` with its own fields written. Called for every plan. If only another
        planner is urgent, or if models were loaded, the planner writes its last decisions again."""

    def put_off(self, until: float) -> str | None:
        """React to an exception that this planner has raised: return the model at fault, and do not
        plan that model again before `until`; None if no single model is at fault."""
        return None
