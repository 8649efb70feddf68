"""Which variants the replicas run, by annealing, as published (Jellyfish, Algorithm 2).

Two modes. DEGRADE makes variants smaller until enough clients have a place (O1, their share of the
clients that any variant can serve). UPGRADE then lets them grow again for accuracy (O2, the mean
over all such clients' frames, 0 for those without a place) and never accepts a loss of O1. Every
candidate is filled by Algorithm 1 and kept, so that it is not filled twice.

The random generator is seeded, so runs repeat. `search` (search.py) is what we plan with; this is
what it is compared with.
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
    """Its parameters, by default those of the paper (§4.3)."""

    first: float = 0.0125
    """Temperature at the beginning of each mode."""
    last: float = 0.0005
    factor: float = 0.99
    """By which the temperature falls with each candidate."""
    enough: float = 1.0
    """O1 that ends DEGRADE, and that UPGRADE keeps."""


def published(
    fleet: Fleet, *, start: Sequence[int] = (), seed: int = 0, annealing: Annealing = Annealing()
) -> Assignment:
    """The assignment that the published selection comes to. `start`: variants of the plan in force;
    without, all replicas begin with the smallest."""
    state = _Selection(fleet, annealing, np.random.default_rng(seed))
    first = tuple(sorted(start)) if start else (0,) * fleet.replicas
    degraded = state.run(first, upgrade=False)
    if state.objectives(degraded)[0] >= annealing.enough:
        degraded = state.run(degraded, upgrade=True)
    return state.known[degraded][2]


class _Selection:
    def __init__(self, fleet: Fleet, annealing: Annealing, random: np.random.Generator) -> None:
        self.fleet = fleet
        self.annealing = annealing
        self.random = random
        self.known: dict[tuple[int, ...], tuple[float, float, Assignment]] = {}
        self._servable = fleet.servable()
        self._frames = sum(fleet.clients[client].rate for client in self._servable)

    def objectives(self, variants: tuple[int, ...]) -> tuple[float, float]:
        """O1 and O2."""
        scores = self.known.get(variants)
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
            self.known[variants] = scores
        return scores[0], scores[1]

    def run(self, variants: tuple[int, ...], *, upgrade: bool) -> tuple[int, ...]:
        """The best candidate of one mode."""
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
