"""`published`: chooses variants by annealing, as published (Jellyfish, Algorithm 2).

It has two modes. DEGRADE makes variants smaller until enough clients are mapped (O1, their share of
the clients that any variant can serve). UPGRADE then lets variants grow for accuracy (O2, the mean
over the frames of all such clients, 0 for unmapped clients) and never accepts a loss of O1.
Candidates are mapped by Algorithm 1 and cached.

The random generator is seeded, so runs repeat. The planner uses `search` (search.py); `published`
is for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slacktide.planning.variants.fleet import UNMAPPED, Assignment, Fleet
from slacktide.planning.variants.mapping import map_clients


@dataclass(frozen=True, slots=True)
class Annealing:
    """Parameters of the annealing; the defaults are the paper's (§4.3)."""

    first: float = 0.0125
    """Temperature at the beginning of each mode."""
    last: float = 0.0005
    factor: float = 0.99
    """Factor of the temperature from one candidate to the next."""
    enough: float = 1.0
    """O1 that ends DEGRADE, and that UPGRADE keeps."""


def published(
    fleet: Fleet, *, start: Sequence[int] = (), seed: int = 0, annealing: Annealing = Annealing()
) -> Assignment:
    """Return the assignment of the published selection. `start`: variants of the plan in force;
    without it, all replicas begin with the smallest."""
    state = _Selection(fleet, annealing, np.random.default_rng(seed))
    first = tuple(sorted(start)) if start else (0,) * fleet.replicas
    degraded = state.run(first, upgrade=False)
    if state.objectives(degraded)[0] >= annealing.enough:
        degraded = state.run(degraded, upgrade=True)
    return state.scored[degraded][2]


class _Selection:
    def __init__(self, fleet: Fleet, annealing: Annealing, random: np.random.Generator) -> None:
        self.fleet = fleet
        self.annealing = annealing
        self.random = random
        self.scored: dict[tuple[int, ...], tuple[float, float, Assignment]] = {}
        self._servable = fleet.servable()
        self._frames = sum(fleet.clients[client].rate for client in self._servable)

    def objectives(self, variants: tuple[int, ...]) -> tuple[float, float]:
        """Return O1 and O2."""
        scores = self.scored.get(variants)
        if scores is None:
            assignment = map_clients(self.fleet, variants)
            mapped = [c for c in self._servable if assignment.clients[c] != UNMAPPED]
            value = sum(
                self.fleet.clients[client].rate
                * self.fleet.variants[assignment.variants[assignment.clients[client]]].accuracy
                for client in mapped
            )
            share = len(mapped) / len(self._servable) if self._servable else 1.0
            scores = share, value / self._frames if self._frames else 0.0, assignment
            self.scored[variants] = scores
        return scores[0], scores[1]

    def run(self, variants: tuple[int, ...], *, upgrade: bool) -> tuple[int, ...]:
        """Return the best candidate of one mode."""
        rules, kind = self.annealing, int(upgrade)
        largest = len(self.fleet.variants) - 1
        now = best = variants
        temperature = rules.first
        while temperature >= rules.last:
            if not upgrade and self.objectives(best)[0] >= rules.enough:
                break
            moved = np.array(now) + self.random.integers(-1, int(upgrade) + 1, size=len(now))
            candidate = tuple(sorted(moved.clip(0, largest).tolist()))
            candidate_scores, current_scores = self.objectives(candidate), self.objectives(now)
            if not upgrade or candidate_scores[0] >= rules.enough:
                gain = candidate_scores[kind] - current_scores[kind]
                if gain >= 0.0 or self.random.random() < math.exp(gain / temperature):
                    now = candidate
                if candidate_scores[kind] > self.objectives(best)[kind]:
                    best = candidate
            temperature *= rules.factor
        return best
