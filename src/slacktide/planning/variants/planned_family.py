"""`PlannedFamily`: what is kept of one family, from questions to what is in force."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slacktide.domain import Plan, PoolId, Request
from slacktide.domain.options import read_options
from slacktide.engine import Snapshot
from slacktide.engine.phases import ReplicaState
from slacktide.planning.bounds import ModelBounds
from slacktide.planning.planner import PlannerError
from slacktide.planning.variants.demand import Session, SessionlessRequests
from slacktide.planning.variants.family import Family
from slacktide.planning.variants.family_fields import FamilyFields
from slacktide.planning.variants.fleet import UNMAPPED
from slacktide.planning.variants.learnt_family import LearntFamily
from slacktide.planning.variants.question import (
    Question,
    Rooms,
    SearchResult,
    VariantsOptions,
    client_of,
)
from slacktide.planning.variants.update import matched

UNKNOWN_S = 1e6
"""Of a variant that has not been on any lane: it is not chosen, but its smaller neighbour may be,
and then it is loaded beside that."""
ANSWER_GAP = 0.005
"""Seconds from one plan to the next at least, and once more for every 50 sessions."""
SEARCHING = 3.0
"""A search that took n seconds is followed by the next after 3 n: it shares its processor."""
CROWDED = 1.0
"""Like `SEARCHING`, where a session finds no room in the plan in force: it waits for an answer."""
PLACED_AT_ONCE = 250
"""Sessions that are given a place in one turn of the loop, at 10 to 32 µs each."""
URGENT_GAP = 0.1
"""Seconds from one search to the next at least, however many clients come and go."""


@dataclass(frozen=True, slots=True)
class VariantsStatus:
    """Where one family stands, for metrics and people."""

    sessions: int
    unmapped: int
    """Sessions that no variant can serve now."""
    accuracy: float
    """Mean over the frames of all sessions, those without a variant counting 0."""
    plans: int
    """Searches so far."""
    planning_s: float
    """Seconds that they took, off the loop."""
    switches: int
    """Lanes that were given another variant."""
    mismatches: int
    """How many of these were not loaded yet."""
    rooms: Rooms
    """Shares of lanes and links that are planned with."""


def replicas_up(model: str, snapshot: Snapshot) -> set[tuple[str, PoolId]]:
    """(lane, pool) of all replicas of a model that serve."""
    return {
        (replica.replica.lane, pool.id)
        for pool in snapshot.serving(model)
        for replica in pool.replicas
        if replica.state is ReplicaState.UP
    }


class PlannedFamily:
    """What is kept of one family."""

    def __init__(self, family: Family, *, now: float) -> None:
        self.family = family
        self.options = read_options(VariantsOptions, family.options)
        self.sides = tuple(variant.size for variant in family.variants)
        self.number = {variant.name: at for at, variant in enumerate(family.variants)}
        self.within = (0, len(self.sides) - 1)
        """The smallest and the largest variant that may be chosen."""
        self.fields = FamilyFields(self)
        self.learnt = LearntFamily(self.options, self.number)
        self.lanes: dict[str, int] = {}
        """The variant that each runs."""
        self.mapped: dict[str, int] = {}
        """The variant of each session, or UNMAPPED."""
        self.plain: int | None = None
        """Variant of the plain route; None: as in the base plan."""
        self.requests: dict[int, SessionlessRequests] = {}
        """Requests without a session, by the variant they ask for, or UNMAPPED."""
        self.answer: SearchResult | None = None
        """What is in force."""
        self.ready: SearchResult | Exception | None = None
        """What is to be put in force."""
        self.asking: dict[str, None] = {}
        """Sessions that are to have an answer at once."""
        self.changed: dict[str, int] = {}
        """When, by `serial`, a session was last given an answer at once."""
        self.serial = 0
        self.stale = True
        """Whether replicas have come up, or sessions have gone."""
        self.due_at = now
        """When to search next."""
        self.held_until = -math.inf
        """Until then plans leave it as the base plan has it."""
        self.failures = 0
        """Plans in a row that could not be made of it."""
        self._asked_at = self._answered_at = -math.inf
        self.plans = self.switches = self.mismatches = 0
        self.planning_s = self.search_s = 0.0
        """Seconds that all searches took, and the last one."""

    def bound(self, bounds: ModelBounds | None) -> None:
        """From now on these hold; None: none. Raises PlannerError for a variant that is none."""
        least, most = 0, len(self.sides) - 1
        if bounds is not None:
            for name in filter(None, (bounds.smallest, bounds.largest)):
                if name not in self.number:
                    raise PlannerError(f"bounds: there is no variant {name!r}")
            least, most = (
                self.number.get(bounds.smallest, least),
                self.number.get(bounds.largest, most),
            )
        self.within = min(least, most), most
        self.lanes = {lane: self.allowed(variant) for lane, variant in self.lanes.items()}

    def allowed(self, variant: int) -> int:
        """The nearest one within bounds."""
        return min(max(variant, self.within[0]), self.within[1])

    def urge(self, *, now: float, searching: float = SEARCHING) -> None:
        """Plan as soon as may be."""
        if self.options.urgent:
            gap = max(URGENT_GAP, searching * self.search_s)
            self.due_at = min(self.due_at, max(now, self._asked_at + gap))

    @property
    def answer_at(self) -> float:
        """When to put in force what there is. Large plans come less often: they take the loop's
        time, however few of their clients have changed."""
        if self.stale or self.ready is not None or self.asking:
            at = self._answered_at + ANSWER_GAP * (1.0 + len(self.mapped) / 50)
            return max(at, self.held_until)
        return math.inf

    def ask(self, id: str, *, now: float) -> None:
        """A session has come, or its variant is too large for its link."""
        self.serial += 1
        if self.options.urgent:
            self.asking[id] = None
        self.urge(now=now)

    def settle(
        self, sessions: Mapping[str, Session], up: Collection[tuple[str, PoolId]], *, now: float
    ) -> None:
        """Put in force what has been found, and answer what cannot wait for a search. `up`: where
        replicas of which pools are (`replicas_up`). Raises what a search has raised."""
        self.stale = False
        self._answered_at = now
        ready, self.ready = self.ready, None
        if isinstance(ready, Exception):
            raise ready
        if ready is not None:
            self._take(ready)
        waiting = sorted(self.asking, key=lambda id: self.mapped.get(id) != UNMAPPED)
        for id in waiting[:PLACED_AT_ONCE]:
            del self.asking[id]
            session = sessions.get(id)
            if session is not None:
                self.mapped[id] = self._at_once(session, now)
                self.changed[id] = self.serial
        if self.answer is not None:
            self._put_on_lanes(self.answer, up)

    def _take(self, answer: SearchResult) -> None:
        self.answer = answer
        for id, variant in answer.sessions.items():
            # Meanwhile it may have gone, or its link may have fallen.
            if id in self.mapped and self.changed.get(id, 0) <= answer.serial:
                self.mapped[id] = variant
        self.changed = {id: at for id, at in self.changed.items() if at > answer.serial}
        if self.options.urgent:  # those that have come meanwhile have no place in it yet
            new_sessions = [id for id in self.mapped if id not in answer.sessions]
            self.asking = dict.fromkeys(new_sessions) | self.asking

    def _put_on_lanes(self, answer: SearchResult, up: Collection[tuple[str, PoolId]]) -> None:
        """What the answer, and the room made in it since, mean for lanes and their clients."""
        for id, variant in answer.moved.items():
            before = self.mapped.get(id)
            if before is not None:
                self.mapped[id] = variant if before == UNMAPPED else min(variant, before)
        answer.moved.clear()
        if answer.plain is not None:
            self.plain = answer.plain
        if len(answer.lanes) == len(self.lanes):
            lane_variants = matched(self.lanes, [self.allowed(variant) for variant in answer.lanes])
            switched = [lane for lane in lane_variants if lane_variants[lane] != self.lanes[lane]]
            self.switches += len(switched)
            loaded = {(lane, self.number.get(pool.variant)) for lane, pool in up}
            self.mismatches += sum((lane, lane_variants[lane]) not in loaded for lane in switched)
            self.lanes = lane_variants

    def _at_once(self, session: Session, now: float) -> int:
        client = client_of(session, self.sides, self.options.wait, self.learnt.rooms, self.within)
        before = self.mapped.get(session.opened.id, UNMAPPED)
        if self.answer is None:
            least = self.within[0]
            return least if client.budgets[least] > 0.0 else UNMAPPED
        if before == UNMAPPED or client.name not in self.answer.sessions:
            variant = self.answer.place(client)
            if variant == UNMAPPED and self.answer.limit(client, 0):
                self.urge(now=now, searching=CROWDED)
            return variant
        # Its place is its own: a smaller variant is no more work. If none is served, its frames
        # are at least as small as its link wants them.
        fitting = [at for at in range(before, -1, -1) if self.answer.limit(client, at)]
        by_turns = self.answer.turns is not None
        served = [at for at in fitting if by_turns or at in self.lanes.values()]
        return next(iter((*served, *fitting)), UNMAPPED)

    @property
    def unmapped(self) -> int:
        """Sessions that no variant can serve."""
        return sum(variant == UNMAPPED for variant in self.mapped.values())

    def overcharged(self, session: Session) -> bool:
        """Whether its link carries no more what it is to send."""
        variant = self.mapped.get(session.opened.id, UNMAPPED)
        if variant == UNMAPPED or self.answer is None:
            return False
        return session.budget(self.sides[variant], room=1.0) < self.learnt.seconds[variant][0]

    def forget(self, id: str) -> None:
        """A session has gone."""
        self.serial += 1
        self.stale = True
        self.fields.forget(id)
        for session_table in (self.mapped, self.changed, self.asking):
            session_table.pop(id, None)

    def see(self, request: Request, *, now: float) -> None:
        """A request without a session, or one that names its variant, has come."""
        requested_variant = UNMAPPED
        if request.size:
            # Of files a request names the place, from 1.
            sides = self.sides if self.sides[-1] else range(1, len(self.sides) + 1)
            requested_variant = min(bisect_left(sides, request.size), len(self.sides) - 1)
        if requested_variant not in self.requests:
            self.requests[requested_variant] = SessionlessRequests(now=now)
        if self.requests[requested_variant].see(request, now=now):
            self.stale = True  # what it asks for is to serve before it is looked at
            self.urge(now=now)

    def status(self, sessions: Mapping[str, Session]) -> VariantsStatus:
        """Where it stands."""
        frames = got = 0.0
        for id, variant in self.mapped.items():
            rate = sessions[id].rate
            frames += rate
            got += rate * self.family.variants[variant].accuracy if variant != UNMAPPED else 0.0
        return VariantsStatus(
            len(self.mapped),
            self.unmapped,
            got / frames if frames else 0.0,
            self.plans,
            self.planning_s,
            self.switches,
            self.mismatches,
            self.learnt.rooms,
        )

    # ── the question ─────────────────────────────────────────────────────────────────────────

    def question(
        self, model: str, sessions: Mapping[str, Session], snapshot: Snapshot, *, now: float
    ) -> Question | None:
        """What to search for; None: nothing can be planned yet."""
        self.due_at = now + max(self.options.period, SEARCHING * self.search_s)
        self.learnt.learn(snapshot.counts.get(model), seconds=now - self._asked_at)
        self._asked_at = now
        self.learnt.read_times(model, self.lanes, snapshot)
        seconds = self.learnt.seconds
        if not seconds or not self.lanes:
            return None
        for requests in self.requests.values():
            requests.settle(now=now)
        mapped_sessions = [sessions[id] for id in self.mapped if id in sessions]
        return Question(
            tuple(seconds.get(at, (UNKNOWN_S,)) for at in range(len(self.sides))),
            self.family,
            self.options,
            self.learnt.rooms,
            tuple((session.opened, session.measured) for session in mapped_sessions),
            tuple((at, load.rate, load.budget) for at, load in self.requests.items() if load.rate),
            len(self.lanes),
            tuple(self.lanes.values()),
            self.serial,
            turns=self.answer is not None and self.answer.turns is not None,
            within=self.within,
        )

    # ── the plan ─────────────────────────────────────────────────────────────────────────────

    def filled(
        self, model: str, draft: Plan, up: Collection[tuple[str, PoolId]], *, now: float
    ) -> Plan:
        """`draft` with the fields of this family."""
        placed = (deployment for deployment in draft.deployments if deployment.pool.model == model)
        lanes = {deployment.lane: deployment.generation for deployment in placed}
        if lanes.keys() != self.lanes.keys():
            self.lanes = {lane: self.lanes.get(lane, self.within[0]) for lane in lanes}
            self.due_at = min(self.due_at, now)
        return self.fields.filled(model, draft, lanes, up)
