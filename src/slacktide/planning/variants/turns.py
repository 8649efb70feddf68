"""`Turns`: lanes that run several variants by turns, for clients with different links.

One variant per lane is best with many lanes, or if batches pay (`search.py`). On a single lane,
that limits all clients to the frames that the slowest link carries. If variants share a process, a
lane can run them by turns, mostly row by row. With m as the largest variant in use, a frame of
variant j waits for one row of m at most and then takes its own time, and clients share the lanes'
time:

    l_j(1) + l_m(1) ≤ budget for j             sum of rate · l_j(1) ≤ LOAD · lanes

For each m, clients begin with the smallest variant that they can use. Then, as long as there is
time, the step to a larger variant that gains the most accuracy per lane time is taken: a
multiple-choice knapsack, solved greedily along the upper hull.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from slacktide.planning.variants.fleet import UNMAPPED, AssignmentScore, Client, Fleet

LOAD = 0.8
"""Share of the lanes' time to plan with, at the p99 of single rows; the rest absorbs simultaneous
frames."""


@dataclass(slots=True)
class Turns:
    """Variants of clients on lanes that run all variants up to the `largest`."""

    fleet: Fleet
    largest: int
    clients: list[int]
    """Variant of each client, or UNMAPPED."""
    free_s: float
    """Seconds of lane time per second that are still free."""
    placed: list[Client] = field(default_factory=list)
    """Clients that came after the fleet's clients; `clients` continues with their variants."""
    _longest: list[tuple[float, int]] | None = None
    """Heap of clients, the slowest variant first; made on first use."""

    @property
    def score(self) -> AssignmentScore:
        """Comparable with the score of an assignment."""
        mapped = accuracy = 0.0
        for client, variant in zip(self.fleet.clients, self.clients, strict=True):
            if variant != UNMAPPED:
                mapped += client.weight
                accuracy += self.fleet.variants[variant].accuracy * client.rate * client.weight
        return AssignmentScore(mapped, accuracy)

    def limit(self, client: Client, variant: int) -> int:
        """Return 1 if the client's budget allows the variant, else 0."""
        variants = self.fleet.variants
        if variant > self.largest or client.floor > variants[variant].accuracy:
            return 0
        needed = variants[variant].seconds[0] + variants[self.largest].seconds[0]
        return int(client.budgets[variant] + 1e-12 >= needed)

    def place(self, client: Client, lowered: dict[str, int]) -> int:
        """Place one more client on the largest variant with room, and return the variant, or
        UNMAPPED. If there is no room, other clients step down until the smallest variant fits;
        `lowered` gets their names and variants."""
        variants = self.fleet.variants
        fitting = [at for at in range(self.largest + 1) if self.limit(client, at)]
        if not fitting:
            return UNMAPPED
        least = client.rate * variants[fitting[0]].seconds[0]
        while least > self.free_s and self._step_down(lowered):
            pass
        for variant in reversed(fitting):
            needed = client.rate * variants[variant].seconds[0]
            if needed <= self.free_s:
                self.free_s -= needed
                self.clients.append(variant)
                self.placed.append(client)
                if self._longest is not None:
                    heappush(self._longest, (-variants[variant].seconds[0], len(self.clients) - 1))
                return variant
        return UNMAPPED

    def _step_down(self, lowered: dict[str, int]) -> bool:
        """Give the client with the slowest variant the next smaller variant."""
        variants = self.fleet.variants
        if self._longest is None:
            self._longest = [
                (-variants[variant].seconds[0], at)
                for at, variant in enumerate(self.clients)
                if variant != UNMAPPED
            ]
            heapify(self._longest)
        while self._longest:
            _, at = heappop(self._longest)
            before, fleet = self.clients[at], self.fleet.clients
            client = fleet[at] if at < len(fleet) else self.placed[at - len(fleet)]
            smaller = next((v for v in range(before - 1, -1, -1) if self.limit(client, v)), None)
            if smaller is not None:
                seconds = variants[smaller].seconds[0]
                self.free_s += client.rate * (variants[before].seconds[0] - seconds)
                self.clients[at] = lowered[client.name] = smaller
                heappush(self._longest, (-seconds, at))
                return True
        return False

    def assign(self) -> None:
        """Give every client its smallest variant, then take the steps that gain most for their
        time. If time is short, clients are left out, beginning with the client that needs the
        most."""
        fleet = self.fleet
        seconds = [variant.seconds[0] for variant in fleet.variants]
        accuracy = [variant.accuracy for variant in fleet.variants]
        ladders = [
            [at for at in range(self.largest + 1) if self.limit(client, at)]
            for client in fleet.clients
        ]
        costs = [
            client.rate * seconds[ladder[0]] if ladder else inf
            for client, ladder in zip(fleet.clients, ladders, strict=True)
        ]
        for at in sorted(range(len(costs)), key=lambda at: costs[at] / fleet.clients[at].weight):
            if costs[at] <= self.free_s:
                self.clients[at] = ladders[at][0]
                self.free_s -= costs[at]
        heap: list[tuple[float, int, int]] = []

        def offer(at: int) -> None:
            """Push the client's best next step."""
            origin, weight = self.clients[at], fleet.clients[at].weight
            steps = [
                ((accuracy[origin] - accuracy[to]) / (seconds[to] - seconds[origin]) * weight, to)
                for to in ladders[at]
                if to > origin and seconds[to] > seconds[origin]
            ]
            if steps:
                gain, to = min(steps)
                heappush(heap, (gain, at, to))

        for at, variant in enumerate(self.clients):
            if variant != UNMAPPED:
                offer(at)
        while heap:
            _, at, to = heappop(heap)
            needed = fleet.clients[at].rate * (seconds[to] - seconds[self.clients[at]])
            if needed <= self.free_s:
                self.clients[at] = to
                self.free_s -= needed
                offer(at)
            else:
                ladders[at] = [variant for variant in ladders[at] if variant < to]
                offer(at)


def by_turns(fleet: Fleet) -> Turns:
    """Return the best plan by turns."""
    candidates = []
    for largest in range(len(fleet.variants)):
        turns = Turns(fleet, largest, [UNMAPPED] * len(fleet.clients), LOAD * fleet.replicas)
        turns.assign()
        candidates.append(turns)
    return max(candidates, key=lambda candidate: candidate.score)
