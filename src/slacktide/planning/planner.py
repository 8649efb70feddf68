"""What a planner is: it owns fields of the plan, sees events, and fills its fields of a draft.

A plan is made of a *base*, which says what is loaded and where it sits at first, and of what each
planner makes of the fields that it owns. Each (scope, field) pair has one owner at most; the
composer refuses a second one (`composer.py`).

A planner that needs more than a millisecond or two hands out a `Job` instead: what is to be
computed, on a frozen snapshot. Drivers run it off the loop and deliver `JobDone`; the planner fills
its fields with the answer when it is next asked. What is recorded is the plan that comes of it, so
a recording replays without any planner.
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

if TYPE_CHECKING:  # its package needs this file
    from slacktide.planning.exits.events import ExitEvent

T = TypeVar("T")


class PlannerError(ValueError):
    """An unknown planner or option, a bad value, or two owners of one field. The caller's mistake;
    the text says which."""


class PlanField(Enum):
    """What planners own, for one scope: a model, a family of variants, or a pipeline."""

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
"""What settings state of planning, by model; each planner takes what it knows (`stated_as`)."""


def stated_as(kind: type[T], stated: Stated) -> dict[str, T]:
    """What is stated of this kind, by model. Of a model several things may be stated, in a tuple:
    `(ScaledModel(…), Family(…))`."""
    statements = {}
    for model, parts in stated.items():
        for statement in parts if isinstance(parts, tuple) else (parts,):
            if isinstance(statement, kind):
                statements[model] = statement
    return statements


def also(stated: object, addition: object) -> tuple[object, ...]:
    """What is stated of a model, with `addition` at its end."""
    return (*(stated if isinstance(stated, tuple) else (stated,)), addition)


@dataclass(frozen=True, slots=True)
class JobDone:
    """A planner's job has come to an end. Delivered with events; the engine never sees it."""

    planner: str
    answer: object = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What a planner wants computed off the loop. Touches nothing but what it was made of."""

    planner: str
    compute: Callable[[], object]

    def run(self) -> JobDone:
        """Compute, wherever this is called. Never raises."""
        try:
            return JobDone(self.planner, self.compute())
        except Exception as error:
            return JobDone(self.planner, error=error)


class Planner(ABC):
    """The contract, with defaults for what a planner may leave out. Pure: reads no clock."""

    name = "planner"
    """Unique within one runtime."""
    reason = ""
    """Why its last `plan` is another one than that before, for people; empty where it is none."""

    def owns(self, stated: Stated) -> frozenset[Owned]:
        """What it fills in where these models are served."""
        return frozenset()

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:  # noqa: B027  # optional
        """From now on drafts begin with `base`. What stays, keeps what is known of it. May raise
        PlannerError; nothing has changed then."""

    def observe(  # noqa: B027  # optional
        self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float
    ) -> None:
        """The engine is about to handle `events`."""

    def observe_sessions(  # noqa: B027  # optional
        self, events: Sequence[SessionEvent], *, now: float
    ) -> None:
        """Clients that stream frames have come, gone or changed. Also called while nothing is
        planned, so that no planner takes a session for what it was."""

    def observe_exits(  # noqa: B027  # optional
        self, events: Sequence[ExitEvent], *, now: float
    ) -> None:
        """Ramps of a pool have been learnt, or arranged. Also called while nothing is planned."""

    def next_wakeup(self, snapshot: Snapshot) -> float:
        """When it is to be asked at the latest (absolute seconds); infinite: when events come."""
        return math.inf

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        """Whether it wants to plan now: its time has come, or a request that can be saved would
        miss its deadline under the plan in force. Asked often, so it should cost little."""
        return self.next_wakeup(snapshot) <= now

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        """What is to be computed off the loop before it can plan; None: nothing. `snapshot` is of
        this moment: freeze it to use it later. Not asked again before the answer is there."""
        return None

    def meanwhile_at(self) -> float:
        """Asked while its job runs: when it is to plan all the same, from what it has (absolute
        seconds); infinite: not before the job is done."""
        return math.inf

    @abstractmethod
    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        """`draft` with its own fields filled in. Called for every plan, also where another planner
        is urgent or models are loaded: then what it had decided is filled in again."""

    def put_off(self, until: float) -> str | None:
        """It has raised: the model that is to blame, which it does not plan for before `until`;
        None if the whole of it is."""
        return None
