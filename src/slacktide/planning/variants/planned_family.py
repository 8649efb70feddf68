"""`PlannedFamily`: the state of one family, from the questions to the variants in force."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slacktide.domain import Plan, PoolId, Request
from slacktide.domain.options import read_options
from slacktide.engine import Snapshot
from slacktide.engine.phases import ReplicaState
from slacktide.planning.draft import UNBOUNDED, ModelBounds
from slacktide.planning.planner import PlannerError
from slacktide.planning.scoped import ScopeState
from slacktide.planning.variants.demand import Session, SessionlessRequests
from slacktide.planning.variants.family import Family
from slacktide.planning.variants.family_fields import FamilyFields
from slacktide.planning.variants.fleet import UNMAPPED
from slacktide.planning.variants.learnt_family import LearntFamily
from slacktide.planning.variants.question import (
    Headroom,
    Question,
    SearchResult,
    VariantsOptions,
    client_of,
)
from slacktide.planning.variants.update import matched

UNKNOWN_S = 1e6
"""Batch time of a variant that was never on a lane. Such a variant is not chosen, but when its
smaller neighbour is chosen, it is loaded beside that neighbour and measured."""
ANSWER_GAP = 0.005
"""Minimum seconds between two plans, and as much again for every 50 sessions."""
SEARCHING = 3.0
"""A search starts at least 3 n seconds after a search that took n, since serving needs the
processor."""
CROWDED = 1.0
"""Like `SEARCHING`, if a session finds no room in the plan in force and has to wait."""
PLACED_AT_ONCE = 250
"""Maximum number of sessions placed in one turn of the loop, at 10 to 32 µs each."""
URGENT_GAP = 0.1
"""Minimum seconds between two searches, however many clients come and go."""


@dataclass(frozen=True, slots=True)
class VariantsStatus:
    """The status of one family, for metrics and people."""

    sessions: int
    unmapped: int
    """Sessions that no variant can serve now."""
    accuracy: float
    """Mean over the frames of all sessions, with 0 for unmapped sessions."""
    plans: int
    """Searches so far."""
    planning_s: float
    """Seconds of all searches, off the loop."""
    switches: int
    """Lanes that were given another variant."""
    mismatches: int
    """Number of switches to a variant that was not loaded yet."""
    headroom: Headroom
    """Shares of lanes and links to plan with."""


def replicas_up(model: str, snapshot: Snapshot) -> set[tuple[str, PoolId]]:
    """Return (lane, pool) of all serving replicas of a model."""
    return {
        (replica.replica.lane, pool.id)
        for pool in snapshot.serving(model)
        for replica in pool.replicas
        if replica.state is ReplicaState.UP
    }


class PlannedFamily(ScopeState):
    """The state of one family."""

    def __init__(self, model: str, family: Family, *, now: float) -> None:
        super().__init__(model, family)
        self.family = family
        self.options = read_options(VariantsOptions, family.options)
        self.sides = tuple(variant.size for variant in family.variants)
        self.number = {variant.name: at for at, variant in enumerate(family.variants)}
        self.within = (0, len(self.sides) - 1)
        """The smallest and the largest variant that may be chosen."""
        self._bounds = UNBOUNDED
        self.fields = FamilyFields(self)
        self.learnt = LearntFamily(self.options, self.number)
        self.lanes: dict[str, int] = {}
        """Variant of each lane."""
        self.mapped: dict[str, int] = {}
        """Variant of each session, or UNMAPPED."""
        self.plain: int | None = None
        """Variant of the plain route; None: as in the base plan."""
        self.requests: dict[int, SessionlessRequests] = {}
        """Requests without a session, by the variant they ask for, or UNMAPPED."""
        self.answer: SearchResult | None = None
        """The search result in force."""
        self.next_answer: SearchResult | None = None
        """The search result to put in force next."""
        self.pending: dict[str, None] = {}
        """Sessions that need an answer immediately."""
        self.placed_serials: dict[str, int] = {}
        """By session: `serial` when it was last placed without a search."""
        self.serial = 0
        self.stale = True
        """Whether replicas have come up, or sessions have gone, since the last plan."""
        self.due_at = now
        """Time of the next search."""
        self.held_until = -math.inf
        """Time until which plans leave the family as in the base plan."""
        self.failures = 0
        """Failures in a row."""
        self._asked_at = self._answered_at = -math.inf
        self.plans = self.switches = self.mismatches = 0
        self.planning_s = self.search_s = 0.0
        """Seconds of all searches, and of the last search."""

    def rebase(self, caps: Mapping[PoolId, int], *, now: float) -> None:
        """Take a new base plan. `caps`: the largest batch of each pool of this family."""
        self.fields.rebase(caps)
        self.due_at, self.held_until = min(self.due_at, now), -math.inf

    def bound(self, bounds: ModelBounds, *, now: float) -> None:
        """Keep within `bounds` from now on. Raises PlannerError for an unknown variant."""
        if bounds == self._bounds:
            return
        for name in (bounds.smallest, bounds.largest):
            if name and name not in self.number:
                raise PlannerError(f"bounds: there is no variant {name!r}")
        largest = self.number.get(bounds.largest, len(self.sides) - 1)
        self._bounds = bounds
        self.within = min(self.number.get(bounds.smallest, 0), largest), largest
        self.lanes = {lane: self.allowed(variant) for lane, variant in self.lanes.items()}
        self.due_at = min(self.due_at, now)

    def allowed(self, variant: int) -> int:
        """Return the nearest variant within bounds."""
        return min(max(variant, self.within[0]), self.within[1])

    def schedule_soon(self, *, now: float, searching: float = SEARCHING) -> None:
        """Search as soon as the gap between searches allows."""
        if self.options.urgent:
            gap = max(URGENT_GAP, searching * self.search_s)
            self.due_at = min(self.due_at, max(now, self._asked_at + gap))

    @property
    def wakeup_at(self) -> float:
        return min(self.meanwhile_at, self.due_at)

    @property
    def meanwhile_at(self) -> float:
        """Time at which pending changes take effect. Large plans come less often: they take the
        loop's time however few of their clients have changed."""
        if self.stale or self.next_answer is not None or self.pending or self.error is not None:
            at = self._answered_at + ANSWER_GAP * (1.0 + len(self.mapped) / 50)
            return max(at, self.held_until)
        return math.inf

    def open(self, id: str, *, now: float) -> None:
        """Take in a session that has opened or has restated its needs."""
        self.mapped.setdefault(id, UNMAPPED)
        self.request_update(id, now=now)

    def request_update(self, id: str, *, now: float) -> None:
        """Give a session another variant as soon as possible."""
        self.serial += 1
        if self.options.urgent:
            self.pending[id] = None
        self.schedule_soon(now=now)

    def accept(self, answer: SearchResult | Exception, seconds: float) -> None:
        self.next_answer = None if isinstance(answer, Exception) else answer
        self.plans += 1
        self.search_s = seconds
        self.planning_s += seconds

    def put_off(self, until: float) -> None:
        """Leave clients where they are. From the second failure in a row on, leave the whole family
        out of plans until `until`; otherwise no other family could be planned."""
        self.due_at = until
        self.failures += 1
        if self.failures > 1:
            self.held_until = until

    def apply(
        self, sessions: Mapping[str, Session], up: Collection[tuple[str, PoolId]], *, now: float
    ) -> None:
        """Put the last answer in force, and place the sessions that cannot wait for a search. `up`:
        (lane, pool) of the replicas that serve (`replicas_up`)."""
        self.stale = False
        self._answered_at = now
        if self.next_answer is not None:
            self._put_in_force(self.next_answer)
            self.next_answer = None
        waiting = sorted(self.pending, key=lambda id: self.mapped.get(id) != UNMAPPED)
        for id in waiting[:PLACED_AT_ONCE]:
            del self.pending[id]
            session = sessions.get(id)
            if session is not None:
                self.mapped[id] = self._at_once(session, now)
                self.placed_serials[id] = self.serial
        if self.answer is not None:
            self._put_on_lanes(self.answer, up)

    def _put_in_force(self, answer: SearchResult) -> None:
        self.answer = answer
        for id, variant in answer.sessions.items():
            # The session may have gone since, or its bandwidth may have dropped.
            if id in self.mapped and self.placed_serials.get(id, 0) <= answer.serial:
                self.mapped[id] = variant
        self.placed_serials = {
            id: at for id, at in self.placed_serials.items() if at > answer.serial
        }
        if self.options.urgent:  # sessions that came since are not in the answer
            new_sessions = [id for id in self.mapped if id not in answer.sessions]
            self.pending = dict.fromkeys(new_sessions) | self.pending

    def _put_on_lanes(self, answer: SearchResult, up: Collection[tuple[str, PoolId]]) -> None:
        """Give lanes and clients the variants of the answer, with moves made since the search."""
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
        client = client_of(
            session, self.sides, self.options.wait, self.learnt.headroom, self.within
        )
        before = self.mapped.get(session.opened.id, UNMAPPED)
        if self.answer is None:
            least = self.within[0]
            return least if client.budgets[least] > 0.0 else UNMAPPED
        if before == UNMAPPED or client.name not in self.answer.sessions:
            variant = self.answer.place(client)
            if variant == UNMAPPED and self.answer.limit(client, 0):
                self.schedule_soon(now=now, searching=CROWDED)
            return variant
        # The session stays on its lane, because a smaller variant takes no longer. Even if no lane
        # serves a variant that fits, its frames become small enough for its link.
        fitting = [at for at in range(before, -1, -1) if self.answer.limit(client, at)]
        by_turns = self.answer.turns is not None
        served = [at for at in fitting if by_turns or at in self.lanes.values()]
        return next(iter((*served, *fitting)), UNMAPPED)

    @property
    def unmapped(self) -> int:
        """Sessions that no variant can serve."""
        return sum(variant == UNMAPPED for variant in self.mapped.values())

    def exceeds_link(self, session: Session) -> bool:
        """Whether frames of its variant are too large for its link."""
        variant = self.mapped.get(session.opened.id, UNMAPPED)
        if variant == UNMAPPED or self.answer is None:
            return False
        return session.budget(self.sides[variant], share=1.0) < self.learnt.seconds[variant][0]

    def close(self, id: str, *, now: float) -> None:
        """Remove a session that has gone."""
        self.serial += 1
        self.stale = True
        self.fields.forget(id)
        for session_table in (self.mapped, self.placed_serials, self.pending):
            session_table.pop(id, None)
        self.schedule_soon(now=now)

    def count_request(self, request: Request, *, now: float) -> None:
        """Count a request without a session, or one that names its variant."""
        requested_variant = UNMAPPED
        if request.size:
            # If variants have no sizes, the size of a request is a variant's number, from 1.
            sides = self.sides if self.sides[-1] else range(1, len(self.sides) + 1)
            requested_variant = min(bisect_left(sides, request.size), len(self.sides) - 1)
        if requested_variant not in self.requests:
            self.requests[requested_variant] = SessionlessRequests(now=now)
        if self.requests[requested_variant].count(request, now=now):
            self.stale = True  # its variant must serve before the request is scheduled
            self.schedule_soon(now=now)

    def status(self, sessions: Mapping[str, Session]) -> VariantsStatus:
        """Return the status of the family."""
        frames = accuracy = 0.0
        for id, variant in self.mapped.items():
            rate = sessions[id].rate
            frames += rate
            accuracy += (
                rate * self.family.variants[variant].accuracy if variant != UNMAPPED else 0.0
            )
        return VariantsStatus(
            len(self.mapped),
            self.unmapped,
            accuracy / frames if frames else 0.0,
            self.plans,
            self.planning_s,
            self.switches,
            self.mismatches,
            self.learnt.headroom,
        )

    # ── the question ─────────────────────────────────────────────────────────────────────────

    def question(
        self, sessions: Mapping[str, Session], snapshot: Snapshot, *, now: float
    ) -> Question | None:
        """Return the input of the next search; None: nothing can be planned yet."""
        self.due_at = now + max(self.options.period, SEARCHING * self.search_s)
        self.learnt.learn(snapshot.counts.get(self.model), seconds=now - self._asked_at)
        self._asked_at = now
        self.learnt.read_times(self.model, self.lanes, snapshot)
        seconds = self.learnt.seconds
        if not seconds or not self.lanes:
            return None
        for requests in self.requests.values():
            requests.update_rate(now=now)
        mapped_sessions = [sessions[id] for id in self.mapped if id in sessions]
        return Question(
            tuple(seconds.get(at, (UNKNOWN_S,)) for at in range(len(self.sides))),
            self.family,
            self.options,
            self.learnt.headroom,
            tuple((session.opened, session.measured) for session in mapped_sessions),
            tuple((at, load.rate, load.budget) for at, load in self.requests.items() if load.rate),
            len(self.lanes),
            tuple(self.lanes.values()),
            self.serial,
            turns=self.answer is not None and self.answer.turns is not None,
            within=self.within,
            paces=tuple(self.learnt.paces.get(at, (UNKNOWN_S,)) for at in range(len(self.sides))),
        )

    # ── the plan ─────────────────────────────────────────────────────────────────────────────

    def write(self, plan: Plan, up: Collection[tuple[str, PoolId]], *, now: float) -> Plan:
        """Return `plan` with the fields of this family."""
        lanes = {
            deployment.lane: deployment.generation
            for deployment in plan.deployments
            if deployment.pool.model == self.model
        }
        if lanes.keys() != self.lanes.keys():
            self.lanes = {lane: self.lanes.get(lane, self.within[0]) for lane in lanes}
            self.due_at = min(self.due_at, now)
        return self.fields.write(self.model, plan, lanes, up)
