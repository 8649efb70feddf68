"""`search`: chooses the variants of all replicas, and a replica for each client.

A candidate is a multiset of variants, one for each replica. `map_clients` maps the clients, and the
score is cached, so no multiset is tried twice. From several candidates (all replicas alike, and the
plan in force) the search climbs to the best neighbour until none is better. The remaining effort
goes into annealing from the best candidate, as in the paper. Moves and swaps of single clients then
improve the best few, since greedy mapping leaves something to gain.

Effort is counted in candidates, not in seconds, so a fleet has the same plan on every machine. A
large fleet is cut into parts of clients with similar budgets, whose plans are joined: planning
hundreds of clients together gains little.

Source: Jellyfish §4.3 for the annealing; the rest is ours (docs/variants.md has figures).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from slacktide.planning.variants.fleet import UNMAPPED, Assignment, AssignmentScore, Fleet
from slacktide.planning.variants.mapping import Filled, map_clients
from slacktide.planning.variants.moves import improved, ordered
from slacktide.planning.variants.pairs import Effort

_PART = 16
"""Maximum number of replicas that are planned together."""
_IMPROVED = 6
"""Candidates that are improved by moves."""
_IMPROVED_OF_FEW = 10
"""Candidates that are improved if there are at most four replicas, as each then costs less."""
_PAIRS = 1000
"""Effort for dividing the clients of two replicas anew, with up to `_PART` / 2 replicas. With more
replicas this would gain about 0.2 % and make a search half as long again."""
_SETS = 2000
"""Sets of clients that are tried for this. It is only reached if clients are left unmapped."""
_NEARLY = 0.95
"""Share of the best accuracy from which plans count as equal if variants must load."""
_LEAST = 40
"""Minimum number of candidates for each part."""
_MOVES = 50
"""Maximum number of moves across parts if clients are left unmapped."""
_TEMPERATURES = (0.0125, 0.0005)
"""Temperatures at the beginning and the end of annealing (paper, §4.3)."""

_STEPS = np.array((-1, 0, 0, 0, 1))
"""Steps of a replica in annealing; most stay."""

Variants = tuple[int, ...]
"""A candidate: variants in ascending order."""


def search(
    fleet: Fleet,
    *,
    start: Sequence[int] = (),
    candidates: int = 150,
    seed: int = 0,
    reach: int | None = None,
) -> Assignment:
    """Return a good assignment. `start`: variants of the plan in force, if any. `candidates`: most
    multisets to try. `reach`: a replica has loaded the variants that are at most this far from its
    present variant; None: all variants. Of nearly equal plans, the plan is taken that moves the
    fewest replicas to variants that are not loaded."""
    parts = max(1, math.ceil(fleet.replicas / _PART))
    if parts == 1:
        return _Search(fleet, seed).run(start, candidates, reach)
    members = _cut(fleet, parts)
    replicas = [fleet.replicas // parts + (at < fleet.replicas % parts) for at in range(parts)]
    present = iter(sorted(start))
    variants: list[int] = []
    clients = [UNMAPPED] * len(fleet.clients)
    for at, chosen in enumerate(members):
        part = Fleet(fleet.variants, [fleet.clients[client] for client in chosen], replicas[at])
        before = [variant for variant, _ in zip(present, range(replicas[at]), strict=False)]
        assignment = _Search(part, seed).run(before, max(_LEAST, candidates // parts))
        for client, replica in zip(chosen, assignment.clients, strict=True):
            clients[client] = UNMAPPED if replica == UNMAPPED else replica + len(variants)
        variants += assignment.variants
    joined = ordered(variants, clients)
    return improved(fleet, joined, most=_MOVES) if UNMAPPED in clients else joined


class _Search:
    """The search of a fleet, or of a part of a fleet."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.random = np.random.default_rng(seed)
        self.scored: dict[Variants, tuple[AssignmentScore, Assignment]] = {}
        self.filled: Filled = {}

    def run(self, start: Sequence[int], candidates: int, reach: int | None = None) -> Assignment:
        fleet = self.fleet
        uniform = [(variant,) * fleet.replicas for variant in range(len(fleet.variants))]
        uniform.sort(key=self.score, reverse=True)
        if len(start) == fleet.replicas:
            uniform.insert(0, tuple(sorted(start)))
        for variants in uniform:
            if len(self.scored) >= candidates:
                break
            self.climb(variants)
        self.anneal(candidates)
        most = _IMPROVED_OF_FEW if fleet.replicas <= 4 else _IMPROVED
        best = sorted(self.scored, key=self.score, reverse=True)[:most]
        effort = Effort(_PAIRS if fleet.replicas <= _PART // 2 else 0, _SETS)
        assignments = [improved(fleet, self.scored[variants][1], pairs=effort) for variants in best]
        top = max(assignments, key=fleet.score)
        if reach is None or len(start) != fleet.replicas:
            return top
        least = fleet.score(top)

        def leaps(variants: Sequence[int]) -> int:
            pairs = zip(sorted(variants), sorted(start), strict=True)
            return sum([abs(goal - base) > reach for goal, base in pairs])

        for assignment in assignments:  # the closest candidates with all variants loaded
            pairs = zip(sorted(assignment.variants), sorted(start), strict=True)
            self.score(tuple([min(max(goal, base - reach), base + reach) for goal, base in pairs]))
        close = [
            variants
            for variants in sorted(self.scored, key=leaps)
            if self.score(variants).accuracy >= _NEARLY * least.accuracy
        ]
        assignments += [self.scored[variants][1] for variants in close[:_IMPROVED]]
        assignments += [improved(fleet, self.scored[variants][1]) for variants in close[:_IMPROVED]]
        equal = [
            assignment
            for assignment in assignments
            if fleet.score(assignment).mapped >= least.mapped
            and fleet.score(assignment).accuracy >= _NEARLY * least.accuracy
        ]
        return min(equal, key=lambda plan: (leaps(plan.variants), -fleet.score(plan).accuracy))

    def score(self, variants: Variants) -> AssignmentScore:
        scored_assignment = self.scored.get(variants)
        if scored_assignment is None:
            assignment = map_clients(self.fleet, variants, filled=self.filled)
            scored_assignment = self.scored[variants] = self.fleet.score(assignment), assignment
        return scored_assignment[0]

    def climb(self, variants: Variants) -> None:
        while True:
            top = max(self.neighbours(variants), key=self.score, default=variants)
            if self.score(top) <= self.score(variants):
                return
            variants = top

    def neighbours(self, variants: Variants) -> Iterator[Variants]:
        """Yield candidates with one replica up to three steps away, or two by one or two steps."""
        kinds = sorted(set(variants))
        for first in kinds:
            for step in (-3, -2, -1, 1, 2, 3):
                yield from self._changed(variants, (first,), (step,))
            for second in kinds:
                if second != first:
                    for steps in ((1, -1), (1, 1), (2, -1), (1, -2)):
                        yield from self._changed(variants, (first, second), steps)

    def _changed(
        self, variants: Variants, chosen: Variants, steps: tuple[int, ...]
    ) -> Iterator[Variants]:
        next_variants = list(variants)
        for variant, step in zip(chosen, steps, strict=True):
            if not 0 <= variant + step < len(self.fleet.variants):
                return
            next_variants.remove(variant)
            next_variants.append(variant + step)
        yield tuple(sorted(next_variants))

    def anneal(self, candidates: int) -> None:
        """Wander from the best candidate, at falling temperature, until `candidates` are scored."""
        largest = len(self.fleet.variants) - 1
        clients, value = float(self.fleet.weight.sum()), float(self.fleet.value.sum())
        now = max(self.scored, key=self.score)
        first, last = _TEMPERATURES
        steps = max(0, candidates - len(self.scored))
        for step in range(steps):
            temperature = first * (last / first) ** (step / steps)
            moved = np.array(now) + _STEPS[self.random.integers(len(_STEPS), size=len(now))]
            candidate = tuple(sorted(moved.clip(0, largest).tolist()))
            current_score, candidate_score = self.score(now), self.score(candidate)
            gain = (candidate_score.mapped - current_score.mapped) / (clients or 1.0)
            gain += (candidate_score.accuracy - current_score.accuracy) / (value or 1.0)
            if gain >= 0.0 or self.random.random() < math.exp(gain / temperature):
                now = candidate


def _cut(fleet: Fleet, parts: int) -> list[list[int]]:
    """Divide clients into `parts` with similar budgets and equal work on the smallest variant.
    Clients with tight budgets weigh more, since their batches are small."""
    order = np.argsort(fleet.limits.sum(axis=1), kind="stable")
    capacity = np.maximum(1, fleet.columns[0, fleet.limits[:, 0]])
    work = (np.array(fleet.rates) / capacity)[order]
    share = max(float(work.sum()) / parts, 1e-9)
    client_parts: list[list[int]] = [[] for _ in range(parts)]
    for client, before in zip(order.tolist(), (work.cumsum() - work).tolist(), strict=True):
        client_parts[min(parts - 1, int(before / share))].append(client)
    return client_parts
