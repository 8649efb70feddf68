"""`Question` and `SearchResult`: the input and the outcome of a search off the loop.

Requests without a session count as clients, split into parts that each fit on one lane. A result
tracks the room left on its lanes, for clients that come before the next search.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from slacktide.domain.options import Options, option
from slacktide.domain.units import SECONDS
from slacktide.planning.sessions import SessionMeasured, SessionOpened
from slacktide.planning.variants.demand import Session
from slacktide.planning.variants.family import Family
from slacktide.planning.variants.fleet import (
    UNMAPPED,
    Assignment,
    AssignmentScore,
    Client,
    Fleet,
    Variant,
)
from slacktide.planning.variants.search import search
from slacktide.planning.variants.turns import Turns, by_turns

MOST_BY_TURNS = 8
"""Maximum number of lanes for which running several variants by turns is tried."""
_PLAIN = "requests without a session"


@dataclass(frozen=True, slots=True)
class VariantsOptions(Options):
    """Options of the variants planner. The defaults measured best (docs/variants.md)."""

    period: float = option(0.5, "Time between plans.", unit=SECONDS, above=0)
    urgent: bool = option(
        True, "Whether to plan immediately when a client joins, leaves or loses bandwidth."
    )
    lanes: Literal["auto", "own", "smallest", "smaller", "all"] = option(
        "auto",
        "Variants that a lane serves if they share a process: `own`, only its own; `smallest` or "
        "`smaller`, also the smallest or all smaller ones; `all`. `auto`: `smaller`, in turns, if "
        "that is more accurate for the clients, else `own`.",
    )
    capacity_share: float | None = option(
        None, "Share of a lane's throughput to plan with; none: learnt for `target_loss`.", above=0
    )
    bandwidth_share: float | None = option(
        None, "Share of a link's bandwidth to plan with; none: learnt for `target_loss`.", above=0
    )
    target_loss: float = option(
        0.003,
        "Share of frames that may be lost on lanes, and on links, while the shares are learnt.",
        above=0,
        below=1,
    )
    wait: float = option(1.0, "Longest wait of a frame to plan for, in batches.", least=0)
    candidates: int = option(150, "Largest number of sets of variants that a plan tries.", least=1)


class Headroom(NamedTuple):
    """Shares of throughput and bandwidth to plan with."""

    capacity: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a search; immutable."""

    seconds: tuple[tuple[float, ...], ...]
    """Seconds of a batch, by variant and rows."""
    family: Family
    options: VariantsOptions
    headroom: Headroom
    sessions: tuple[tuple[SessionOpened, SessionMeasured | None], ...]
    requests: tuple[tuple[int, float, float], ...]
    """(variant or UNMAPPED for any, rate, budget) of requests without a session."""
    lanes: int
    start: tuple[int, ...]
    serial: int
    """Number of session changes that the question includes."""
    turns: bool = False
    """Whether lanes now run several variants by turns."""
    within: tuple[int, int] | None = None
    """The smallest and the largest variant that may be chosen; None: any."""
    paces: tuple[tuple[float, ...], ...] | None = None
    """Like `seconds`, for many batches in a row; None: `seconds`."""

    def answer(self) -> SearchResult:
        """Run the search."""
        sides = [variant.size for variant in self.family.variants]
        room = self.headroom.capacity
        variants = [
            Variant(
                variant.name,
                variant.accuracy,
                tuple([time / room for time in seconds]),
                tuple([time / room for time in paces]),
            )
            for variant, seconds, paces in zip(
                self.family.variants, self.seconds, self.paces or self.seconds, strict=True
            )
        ]
        clients = []
        for opened, measured in self.sessions:
            session = Session(opened)
            if measured is not None:
                session.measure(measured)
            clients.append(client_of(session, sides, self.options.wait, self.headroom, self.within))
        plain: list[int] = []
        for variant, rate, budget in self.requests:
            allowed = _allowed(self.within, sides) if variant == UNMAPPED else (variant,)
            most = variants[allowed[0]].most(budget)
            parts = min(2 * self.lanes, max(1, math.ceil(2.0 * rate / most))) if most else 1
            budgets = [budget if at in allowed else 0.0 for at in range(len(sides))]
            plain += [variant] * parts
            clients += [Client(_PLAIN, rate / parts, tuple(budgets))] * parts
        fleet = Fleet(variants, clients, self.lanes)
        assignment = search(
            fleet,
            start=self.start,
            candidates=self.options.candidates,
            reach=None if self.family.switches_free else (self.family.resident - 1) // 2,
        )
        turns = self._turns(fleet, fleet.score(assignment))
        return SearchResult(self, fleet, assignment, plain, turns)

    def _turns(self, fleet: Fleet, score: AssignmentScore) -> Turns | None:
        """Return a plan by turns if it is better. Small differences keep the present mode."""
        most = MOST_BY_TURNS
        if self.options.lanes != "auto" or not self.family.switches_free or self.lanes > most:
            return None
        turns = by_turns(fleet)
        turns_score, change = turns.score, 1.01 if not self.turns else 0.99
        better = turns_score.mapped > score.mapped or (
            turns_score.mapped == score.mapped and turns_score.accuracy > change * score.accuracy
        )
        return turns if better else None


class SearchResult:
    """A plan for a family, and the room left in it."""

    def __init__(
        self,
        question: Question,
        fleet: Fleet,
        assignment: Assignment,
        plain: Sequence[int],
        turns: Turns | None = None,
    ) -> None:
        """`turns`: if given, it replaces `assignment`."""
        self.serial = question.serial
        self.turns = turns
        client_variants = [
            UNMAPPED if replica == UNMAPPED else assignment.variants[replica]
            for replica in assignment.clients
        ]
        self._mapped_on_lanes = len(client_variants) - client_variants.count(UNMAPPED)
        if turns is not None:
            client_variants = turns.clients
        self.sessions = {
            opened.id: variant
            for (opened, _), variant in zip(question.sessions, client_variants, strict=False)
        }
        """Variant of each session."""
        mapped = client_variants[len(question.sessions) :]
        free = [got for variant, got in zip(plain, mapped, strict=True) if variant == UNMAPPED]
        least = 0 if question.within is None else question.within[0]
        self.plain = max(least, min(free)) if free else None
        """Variant for requests without a session; None: there are none."""
        self.moved: dict[str, int] = {}
        """Sessions moved since the search to make room for others, with their variants."""
        self._may_lower = question.family.switches_free
        self._fleet, self._assignment = fleet, assignment
        self._columns = fleet.columns.tolist()
        self._twice = [[2.0 * seconds for seconds in variant.seconds] for variant in fleet.variants]
        self._fill_lanes()

    def _fill_lanes(self) -> None:
        fleet, turns, assignment = self._fleet, self.turns, self._assignment
        self.lanes = [turns.largest] * fleet.replicas if turns else list(assignment.variants)
        """Variant of each lane, largest first; with `turns`, all smaller variants run too."""
        self._loads = [0.0] * len(self.lanes)
        self._tightest = [[fleet.batches] * len(fleet.variants) for _ in self.lanes]
        """Largest batch that the clients of a lane allow, by lane and variant."""
        self._names: list[list[str]] = [[] for _ in self.lanes]
        """Names of the clients of each lane."""
        for client, limits, replica in zip(
            fleet.clients, fleet.limits.tolist(), assignment.clients, strict=True
        ):
            if replica != UNMAPPED and turns is None:
                self._join(client, limits, replica)

    def place(self, client: Client) -> int:
        """Place one more client on the largest variant with room, and return the variant, or
        UNMAPPED. If no lane has room and switching is free, other clients get smaller variants."""
        variant = UNMAPPED if self.turns is None else self.turns.place(client, self.moved)
        if variant == UNMAPPED and (self.turns is None or self._end_turns(self.turns)):
            variant = self._place_on_lanes(client)
        self.sessions[client.name] = variant
        plain = self.moved.pop(_PLAIN, None)
        if plain is not None and self.plain is not None:
            self.plain = max(0, min(self.plain, plain))
        return variant

    def _end_turns(self, turns: Turns) -> bool:
        """Return to one variant per lane, in batches, if that serves no fewer clients."""
        served = len(turns.clients) - turns.clients.count(UNMAPPED)
        if self._mapped_on_lanes + len(turns.placed) < served:
            return False
        self.turns = None
        self._fill_lanes()
        moved = {client.name: self._place_on_lanes(client) for client in turns.placed}
        if UNMAPPED in moved.values():
            self.turns, self._mapped_on_lanes = turns, -1  # never tried again
            self._fill_lanes()
            return False
        for client, replica in zip(self._fleet.clients, self._assignment.clients, strict=True):
            variant = UNMAPPED if replica == UNMAPPED else self.lanes[replica]
            moved[client.name] = min(variant, moved.get(client.name, variant))
        self.moved.update(moved)
        return True

    def _place_on_lanes(self, client: Client) -> int:
        limits = [self._batch_limit(client, at) for at in range(len(self._twice))]
        lane = self._roomy(client, limits) if any(limits) else None
        if lane is None:
            return UNMAPPED
        self._join(client, limits, lane)
        return self.lanes[lane]

    def _join(self, client: Client, limits: Sequence[int], lane: int) -> None:
        self._loads[lane] += client.rate
        self._tightest[lane] = list(map(min, self._tightest[lane], limits))
        self._names[lane].append(client.name)

    def _roomy(self, client: Client, limits: Sequence[int]) -> int | None:
        """Return the lane of the largest variant with room for a client. If none has room, switch
        the lane that loses the least accuracy to a smaller variant with room."""
        step, rate = self._fleet.step, client.rate

        def fits(lane: int, variant: int) -> bool:
            most = self._columns[variant][min(self._tightest[lane][variant], limits[variant])]
            return bool(self._loads[lane] + rate <= most * step)

        for lane, variant in enumerate(self.lanes):
            if fits(lane, variant):
                return lane
        if not self._may_lower:
            return None
        accuracy = [variant.accuracy for variant in self._fleet.variants]
        step_downs = []
        for lane, variant in enumerate(self.lanes):
            smaller = next((at for at in range(variant - 1, -1, -1) if fits(lane, at)), None)
            if smaller is not None:
                loss = self._loads[lane] * (accuracy[variant] - accuracy[smaller])
                step_downs.append((loss - rate * accuracy[smaller], lane, smaller))
        if not step_downs:
            return None
        _, lane, smaller = min(step_downs)
        self.lanes[lane] = smaller
        self.moved.update(dict.fromkeys(self._names[lane], smaller))
        return lane

    def limit(self, client: Client, variant: int) -> int:
        """Return the largest batch that the client's budget allows."""
        if self.turns is not None:
            return self.turns.limit(client, variant)
        return self._batch_limit(client, variant)

    def _batch_limit(self, client: Client, variant: int) -> int:
        if client.floor > self._fleet.variants[variant].accuracy:
            return 0
        return bisect_right(self._twice[variant], client.budgets[variant] + 1e-12)


def _allowed(within: tuple[int, int] | None, sides: Sequence[int]) -> Sequence[int]:
    least, most = within or (0, len(sides) - 1)
    return range(least, most + 1)


def client_of(
    session: Session,
    sides: Sequence[int],
    wait: float,
    headroom: Headroom,
    within: tuple[int, int] | None = None,
) -> Client:
    """Return a session as a client of the search. The search assumes that a frame waits as long as
    its own batch takes, on a lane at full speed: budgets are scaled for other waits and speeds."""
    scale = 2.0 / ((1.0 + wait) * headroom.capacity)
    budgets = session.budgets(sides, share=headroom.bandwidth)
    allowed = _allowed(within, sides)
    return Client(
        session.opened.id,
        session.rate,
        tuple([scale * budget if at in allowed else 0.0 for at, budget in enumerate(budgets)]),
        session.weight,
        session.floor,
    )
