"""`PlannedFamily`: what is kept of one family, from questions to its fields of a plan."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from slacktide.domain import Deployment, InputSize, Plan, PoolId, Reason, Request, Route
from slacktide.domain.options import read_options
from slacktide.engine import Snapshot
from slacktide.engine.ledger import ModelCounts
from slacktide.engine.placement import ReplicaState
from slacktide.planning.bounds import StageBounds
from slacktide.planning.planner import PlannerError
from slacktide.planning.sessions import SessionMeasured
from slacktide.planning.variants.demand import LearnedRoom, Session, SessionlessRequests
from slacktide.planning.variants.family import Family
from slacktide.planning.variants.fleet import UNMAPPED
from slacktide.planning.variants.question import (
    Question,
    Rooms,
    SearchResult,
    VariantsOptions,
    client_of,
)
from slacktide.planning.variants.update import matched, resident
from slacktide.profiles.variant_times import rising

BATCH_MOST = 16
"""Rows of the largest batch that is planned with."""
FOR_CAPACITY = (
    Reason.AFTER_DEADLINE,
    Reason.HOPELESS,
    Reason.CROWDED_OUT,
    Reason.BEHIND_OVERRUN,
    Reason.BEHIND_WORK,
)
FOR_BANDWIDTH = (Reason.SHORTER_THAN_ALONE, Reason.EXPIRED)
"""Ends of frames for want of time on a lane, and of those that came with too little left."""
UNKNOWN_S = 1e6
"""Of a variant that has not been on any lane: it is not chosen, but its smaller neighbour may be,
and then it is loaded beside that."""
ANSWER_GAP = 0.005
"""Seconds from one plan to the next at least, and once more for every 50 sessions."""
SEARCHING = 3.0
"""A search that took n seconds is followed by the next after 3 n: it shares its processor."""
CROWDED = 1.0
"""The same where a session finds no room in the plan in force: it has no answer before."""
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
        self.sides = tuple(each.size for each in family.variants)
        self.number = {each.name: at for at, each in enumerate(family.variants)}
        self.within = (0, len(self.sides) - 1)
        """The smallest and the largest variant that may be chosen."""
        self.caps: dict[PoolId, int] = {}
        """Largest batches in the base plan, of all pools of the family."""
        self.seconds: dict[int, tuple[float, ...]] = {}
        """By variant: p99 of batches of 1, 2, … rows, rising with rows and variants. Those that
        have not been on any lane are not known."""
        self._read: dict[int, tuple[object, tuple[float, ...]]] = {}
        """By variant: what was read last, and of what."""
        self.lanes: dict[str, int] = {}
        """The variant that each runs."""
        self.mapped: dict[str, int] = {}
        """The variant of each session, or UNMAPPED."""
        self._capacity = LearnedRoom(self.options.late)
        self._bandwidth = LearnedRoom(self.options.late)
        self._ends = (0, 0, 0)
        """Frames of sessions so far, as they were told of: ended, lost on lanes, lost on links."""
        self.plain: int | None = None
        """Of the plain route; None: as in the base plan."""
        self.requests: dict[int, SessionlessRequests] = {}
        """Those without a session, by the variant they ask for, or UNMAPPED."""
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
        self.routes: dict[str, dict[str | None, Route]] = {}
        """By session and version, as they were last."""
        self.inputs: dict[str, InputSize] = {}

    def bound(self, bounds: StageBounds | None) -> None:
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
        self.lanes = {lane: self._allowed(variant) for lane, variant in self.lanes.items()}

    def _allowed(self, variant: int) -> int:
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
            new = [id for id in self.mapped if id not in answer.sessions]
            self.asking = dict.fromkeys(new) | self.asking

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
            wanted = matched(self.lanes, [self._allowed(each) for each in answer.lanes])
            switched = [lane for lane in wanted if wanted[lane] != self.lanes[lane]]
            self.switches += len(switched)
            loaded = {(lane, self.number.get(pool.variant)) for lane, pool in up}
            self.mismatches += sum((lane, wanted[lane]) not in loaded for lane in switched)
            self.lanes = wanted

    def _at_once(self, session: Session, now: float) -> int:
        client = client_of(session, self.sides, self.options.wait, self.rooms, self.within)
        before = self.mapped.get(session.opened.id, UNMAPPED)
        if self.answer is None:
            least = self.within[0]
            return least if client.budgets[least] > 0.0 else UNMAPPED
        if before == UNMAPPED or client.name not in self.answer.sessions:
            found = self.answer.place(client)
            if found == UNMAPPED and self.answer.limit(client, 0):
                self.urge(now=now, searching=CROWDED)
            return found
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
        return session.budget(self.sides[variant], room=1.0) < self.seconds[variant][0]

    def forget(self, id: str) -> None:
        """A session has gone."""
        self.serial += 1
        self.stale = True
        for known in (self.mapped, self.changed, self.asking, self.inputs, self.routes):
            known.pop(id, None)

    def see(self, request: Request, *, now: float) -> None:
        """A request without a session, or one that names its variant, has come."""
        asked = UNMAPPED
        if request.size:
            # Of files a request names the place, from 1.
            sides = self.sides if self.sides[-1] else range(1, len(self.sides) + 1)
            asked = min(bisect_left(sides, request.size), len(self.sides) - 1)
        if asked not in self.requests:
            self.requests[asked] = SessionlessRequests(now=now)
        if self.requests[asked].see(request, now=now):
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
            self.rooms,
        )

    # ── the question ─────────────────────────────────────────────────────────────────────────

    def question(
        self, model: str, sessions: Mapping[str, Session], snapshot: Snapshot, *, now: float
    ) -> Question | None:
        """What to search for; None: nothing can be planned yet."""
        self.due_at = now + max(self.options.period, SEARCHING * self.search_s)
        self._learn(snapshot.counts.get(model), seconds=now - self._asked_at)
        self._asked_at = now
        self._read_times(model, snapshot)
        if not self.seconds or not self.lanes:
            return None
        for each in self.requests.values():
            each.settle(now=now)
        own = [sessions[id] for id in self.mapped if id in sessions]
        return Question(
            tuple(self.seconds.get(at, (UNKNOWN_S,)) for at in range(len(self.sides))),
            self.family,
            self.options,
            self.rooms,
            tuple((each.opened, each.measured) for each in own),
            tuple((at, each.rate, each.budget) for at, each in self.requests.items() if each.rate),
            len(self.lanes),
            tuple(self.lanes.values()),
            self.serial,
            turns=self.answer is not None and self.answer.turns is not None,
            within=self.within,
        )

    @property
    def rooms(self) -> Rooms:
        """To plan with: as stated, or as learnt."""
        stated = self.options
        return Rooms(
            stated.capacity_room or self._capacity.share,
            stated.bandwidth_room or self._bandwidth.share,
        )

    def count(self, now: SessionMeasured, before: SessionMeasured | None) -> None:
        """More is known of a session."""
        ended, lanes, links = self._ends
        if before is None:
            self._ends = ended + now.ended, lanes + now.lost_on_lanes, links + now.lost_on_link
        else:
            self._ends = (
                ended + now.ended - before.ended,
                lanes + now.lost_on_lanes - before.lost_on_lanes,
                links + now.lost_on_link - before.lost_on_link,
            )

    def _learn(self, counts: ModelCounts | None, *, seconds: float) -> None:
        """From frames that sessions were told of; else from all requests of the model."""
        ended, lanes, links = self._ends
        if not ended and counts is not None:
            ends, ended = counts.by_reason, counts.ended
            lanes, links = (
                sum(ends.get(each, 0) for each in reasons)
                for reasons in (FOR_CAPACITY, FOR_BANDWIDTH)
            )
        self._capacity.settle(lanes, ended, seconds=seconds)
        self._bandwidth.settle(links, ended, seconds=seconds)

    def _read_times(self, model: str, snapshot: Snapshot) -> None:
        """P99 of batches, made to rise with rows and variants."""
        found = snapshot.lanes
        cores = min((len(found[lane].cores) for lane in self.lanes if lane in found), default=1)
        for pool in snapshot.serving(model):
            at = self.number.get(pool.id.variant)
            if at is None:
                continue
            of = (pool.id, pool.times.revision, cores)
            if at not in self._read or self._read[at][0] != of:
                rows = range(1, min(pool.max_batch, BATCH_MOST) + 1)
                p99 = [pool.times.of(each, max(1, cores)).p99 for each in rows]
                self._read[at] = of, tuple(p99)
        known = sorted(self._read)
        raised = rising([self._read[at][1] for at in known])
        self.seconds.update(zip(known, raised, strict=True))

    # ── the plan ─────────────────────────────────────────────────────────────────────────────

    def filled(
        self, model: str, draft: Plan, up: Collection[tuple[str, PoolId]], *, now: float
    ) -> Plan:
        """`draft` with the fields of this family."""
        lanes = {one.lane: one.generation for one in draft.deployments if one.pool.model == model}
        if lanes.keys() != self.lanes.keys():
            self.lanes = {lane: self.lanes.get(lane, self.within[0]) for lane in lanes}
            self.due_at = min(self.due_at, now)
        # Where a route of others leads, something serves.
        stated = {
            route.pool
            for route in draft.routes
            if route.model == model and (route.client, route.application) != (None, None)
        }
        placed: list[Deployment] = []
        for lane, generation in lanes.items():
            on = dict(self._resident(lane, up)) | dict.fromkeys(sorted(stated), True)
            for pool, serves in on.items():
                cap = self.caps[pool]
                placed.append(Deployment(pool, lane, cap, generation, standby=not serves))
        deployed = {one.pool for one in placed if not one.standby}
        serving = deployed if self.family.switches_free else deployed & {pool for _, pool in up}
        routes: list[Route] = []
        others: list[Route] = []
        for route in draft.routes:
            if route.model == model and route.client is None and route.application is None:
                routes += self._routes(route, serving, deployed)
            else:
                others.append(route)
        return replace(
            draft,
            deployments=(*(one for one in draft.deployments if one.pool.model != model), *placed),
            routes=(*others, *routes),
            inputs=(*draft.inputs, *self._inputs(model)),
        )

    def _resident(
        self, lane: str, up: Collection[tuple[str, PoolId]]
    ) -> Iterator[tuple[PoolId, bool]]:
        """The pools that are to be on a lane, and whether they serve there."""
        family, own = self.family, self.lanes[lane]
        for pools in self._loads():
            serving: Collection[int] = {own}
            if family.switches_free:
                chosen: Collection[int] = pools
                lanes = self.options.lanes
                if lanes == "auto":
                    turns = self.answer is not None and self.answer.turns is not None
                    lanes = "smaller" if turns else "own"
                # What is asked for by name or size is served, and without sessions all there is.
                serving = {own, *(at for at, one in self.requests.items() if one.expected)}
                if not self.mapped:
                    serving = pools
                elif lanes != "own":
                    most = {"smallest": 0, "smaller": own, "all": len(self.sides)}[lanes]
                    serving = {*serving, *range(most + 1)}
            else:
                sizes = [each.nbytes for each in family.variants]
                chosen = resident(own, sizes, most=family.resident, budget=family.memory)
                if own + 1 in pools and own + 1 not in self.seconds and len(chosen) == 2:
                    chosen = (own, own + 1)  # else it would never be known
                old = [at for at, pool in pools.items() if (lane, pool) in up]
                if old and own not in old:  # what is up serves until its own variant is
                    nearest = min(old, key=lambda at: abs(at - own))
                    serving = {nearest, own}
                    chosen = list(dict.fromkeys((own, nearest, *chosen)))[: max(2, family.resident)]
            for at in sorted(chosen):
                if at in pools:
                    yield pools[at], at in serving

    def _loads(self) -> list[dict[int, PoolId]]:
        """Pools by variant, of each load of each version."""
        found: dict[tuple[str, int], dict[int, PoolId]] = {}
        for pool in self.caps:
            number = self.number.get(pool.variant)
            if number is not None:
                found.setdefault((pool.version, pool.generation), {})[number] = pool
        return list(found.values())

    def _routes(
        self, plain: Route, serving: Collection[PoolId], deployed: Collection[PoolId]
    ) -> list[Route]:
        """The plain route, and those of sessions beside it: to what serves of this load, or to what
        will."""
        beside = plain.pool._replace
        pools = [beside(variant=each.name) for each in self.family.variants]
        there = [at for at, pool in enumerate(pools) if pool in serving]
        there = there or [at for at, pool in enumerate(pools) if pool in deployed]
        if not there:
            return [plain]
        # The variant or the next smaller one that serves, or else the smallest of all.
        led = [
            pools[max([one for one in there if one <= at], default=there[0])]
            for at in range(len(pools))
        ]
        led_to = self.number.get(plain.pool.variant, 0) if self.plain is None else self.plain
        led_to = self._allowed(led_to)
        found = [replace(plain, pool=led[led_to])]
        for id, variant in self.mapped.items():
            pool = led[max(variant, 0)]
            known = self.routes.setdefault(id, {})
            route = known.get(plain.version)
            if route is None or route.pool != pool:
                route = known[plain.version] = Route(plain.model, pool, plain.version, client=id)
            found.append(route)
        return found

    def _inputs(self, model: str) -> list[InputSize]:
        names = [each.name for each in self.family.variants] + [""]
        found = []
        for id, variant in self.mapped.items():
            one = self.inputs.get(id)
            if one is None or one.variant != names[variant]:
                one = self.inputs[id] = InputSize(model, id, names[variant])
            found.append(one)
        return found
