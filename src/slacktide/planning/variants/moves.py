"""`improved`: improves an assignment by moves that greedy mapping misses: moves and swaps of single
clients, and other variants for replicas. Arrays evaluate the whole neighbourhood together.

A new client may be the tightest client of its replica and so lower the replica's capacity, whereas
a client that leaves never does harm. So a move is allowed if its target replica allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from slacktide.planning.variants.fleet import UNMAPPED, Assignment, Fleet
from slacktide.planning.variants.pairs import Effort, divided

_LEAST = 1e-9
"""Gain below which a difference is rounding."""


def improved(
    fleet: Fleet, assignment: Assignment, *, most: int = 1000, pairs: Effort | None = None
) -> Assignment:
    """Return the assignment after taking the best move again and again, at most `most` times, until
    none gains. A client is dropped only in favour of heavier clients. `pairs`: effort for dividing
    the clients of two replicas anew if no move gains (`pairs.py`)."""
    if not fleet.clients:
        return assignment
    state = _State(fleet, assignment)
    for _ in range(most):
        if not (
            state.move()
            or state.exchange()
            or state.refill()
            or state.enlarge()
            or (pairs is not None and state.divide(pairs))
        ):
            break
    return state.assignment()


class _State:
    """An assignment being improved."""

    def __init__(self, fleet: Fleet, assignment: Assignment) -> None:
        self.fleet = fleet
        self.rates = np.array(fleet.rates)
        self.at = np.array(assignment.clients)
        self.variants = list(assignment.variants)
        self.unit = 1.0 + float(fleet.value.sum())
        """Worth of a mapped client of weight 1: more than all accuracy together."""
        self._read_replicas()

    def _read_replicas(self) -> None:
        fleet, replicas = self.fleet, len(self.variants)
        self.accuracy = np.append(fleet.accuracy[self.variants], 0.0)
        """Accuracy of each replica; the last entry, for no replica, is 0."""
        self.limits = fleet.limits[:, self.variants]
        self.columns = fleet.columns[self.variants]
        self.loads = np.zeros(replicas, np.int64)
        self.tightest = np.full(replicas, fleet.batches)
        self.second = np.full(replicas, fleet.batches)
        for replica in range(replicas):
            self._read(replica)

    def _read(self, replica: int) -> None:
        members = np.flatnonzero(self.at == replica)
        self.loads[replica] = self.rates[members].sum()
        limits = np.sort(self.limits[members, replica])
        self.tightest[replica] = limits[0] if len(limits) else self.fleet.batches
        self.second[replica] = limits[1] if len(limits) > 1 else self.fleet.batches

    def _put(self, client: int, replica: int) -> None:
        before = int(self.at[client])
        self.at[client] = replica
        for changed_replica in (before, replica):
            if changed_replica != UNMAPPED:
                self._read(changed_replica)

    def move(self) -> bool:
        """Make the move of a single client to another replica that gains most."""
        worth = self.accuracy[:-1][None, :] - self.accuracy[self.at][:, None]
        gain = self.fleet.value[:, None] * worth
        gain[self.at == UNMAPPED] += self.unit * self.fleet.weight[self.at == UNMAPPED, None]
        limits = np.minimum(self.limits, self.tightest)
        room = self.columns[np.arange(len(self.loads)), limits] - self.loads
        gain[(self.limits == 0) | (room < self.rates[:, None])] = 0.0
        client, replica = divmod(int(gain.argmax()), gain.shape[1])
        if gain[client, replica] <= _LEAST:
            return False
        self._put(client, replica)
        return True

    def exchange(self) -> bool:
        """Let a client take the place of a second client. The second client goes to the place of
        the first, to another replica with room, or nowhere."""
        mapped = np.flatnonzero(self.at != UNMAPPED)
        if not len(mapped):
            return False
        at, limits = self.at[mapped], self.limits[:, self.at[mapped]]
        tightest = self.limits[mapped, at] == self.tightest[at]
        caps = np.where(tightest, self.second[at], self.tightest[at])
        room = self.columns[at, np.minimum(limits, caps)] - self.loads[at] + self.rates[mapped]
        fits = (limits > 0) & (room >= self.rates[:, None])
        """Whether a client could take the place of a mapped client: [client, mapped client]."""
        fits[mapped] &= at[:, None] != at
        elsewhere, refuge = self._refuges(mapped)
        value = self.fleet.value
        worth = self.accuracy[at] - self.accuracy[self.at][:, None]
        gain = value[:, None] * worth + elsewhere
        gain[self.at == UNMAPPED] += self.unit * self.fleet.weight[self.at == UNMAPPED, None]
        swapped = value[mapped] * (self.accuracy[self.at][:, None] - self.accuracy[at])
        back = np.zeros(fits.shape, bool)
        back[mapped] = fits[mapped].T
        swaps = back & (swapped > elsewhere)
        gain = np.where(swaps, gain - elsewhere + swapped, gain)
        gain[~fits] = 0.0
        client, partner = divmod(int(gain.argmax()), gain.shape[1])
        if gain[client, partner] <= _LEAST:
            return False
        second = int(mapped[partner])
        place = int(self.at[second])
        goes = int(self.at[client]) if swaps[client, partner] else int(refuge[partner])
        self.at[client] = UNMAPPED
        self._put(second, goes)
        self._put(client, place)
        return True

    def _refuges(self, mapped: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return, for each mapped client, the gain of moving to the best other replica with room,
        and that replica; if there is none, the loss of dropping the client, and UNMAPPED."""
        limits = self.limits[mapped]
        capacity = self.columns[np.arange(len(self.loads)), np.minimum(limits, self.tightest)]
        fits = (limits > 0) & (capacity - self.loads >= self.rates[mapped, None])
        fits[np.arange(len(mapped)), self.at[mapped]] = False
        gain = self.accuracy[:-1] - self.accuracy[self.at[mapped]][:, None]
        gain = np.where(fits, gain * self.fleet.value[mapped, None], -np.inf)
        best = gain.argmax(axis=1)
        gained = gain[np.arange(len(mapped)), best]
        out = np.isinf(gained)
        weight, value = self.fleet.weight[mapped], self.fleet.value[mapped]
        lost = -self.unit * weight - value * self.accuracy[self.at[mapped]]
        return np.where(out, lost, gained), np.where(out, UNMAPPED, best)

    def refill(self) -> bool:
        """Choose the clients of a replica anew among its own and the unmapped clients, since
        dropping one may make room for two. A knapsack as in `mapping.py`, by worth instead of
        rate."""
        out = np.flatnonzero(self.at == UNMAPPED)
        if not len(out):
            return False
        worth = self.unit * self.fleet.weight
        for replica in range(len(self.variants)):
            members = np.flatnonzero(self.at == replica)
            asking = np.concatenate((members, out[self.limits[out, replica] > 0]))
            if len(asking) == len(members):
                continue
            worths = worth[asking] + self.fleet.value[asking] * self.accuracy[replica]
            order = np.argsort(-self.limits[asking, replica], kind="stable")
            chosen, total = self._knapsack(replica, asking[order], worths[order])
            member_worth = float(worths[: len(members)].sum())
            if total > member_worth + _LEAST * max(
                1.0, member_worth
            ):  # sums may differ by rounding
                self.at[members] = UNMAPPED
                self.at[chosen] = replica
                self._read(replica)
                return True
        return False

    def _knapsack(
        self, replica: int, clients: NDArray[np.int64], worths: NDArray[np.float64]
    ) -> tuple[list[int], float]:
        """Return the best set for a replica and its worth. `clients` have falling limits."""
        capacities = self.columns[replica, self.limits[clients, replica]]
        best = np.full(int(capacities.max()) + 1, -np.inf)
        best[0] = 0.0
        steps = []
        for at, client in enumerate(clients):
            rate, end = int(self.rates[client]), int(capacities[at]) + 1
            if rate < end:
                added = best[: end - rate] + worths[at]
                better = added > best[rate:end]
                best[rate:end] = np.where(better, added, best[rate:end])
                steps.append((int(client), rate, better))
        remaining_rate = int(best.argmax())
        total, chosen = float(best[remaining_rate]), []
        for client, rate, better in reversed(steps):
            if 0 <= remaining_rate - rate < len(better) and better[remaining_rate - rate]:
                chosen.append(client)
                remaining_rate -= rate
        return chosen, total

    def enlarge(self) -> bool:
        """Give the replica that gains most a larger variant."""
        best, upgrade = _LEAST, None
        for replica, variant in enumerate(self.variants):
            members = np.flatnonzero(self.at == replica)
            if not len(members):
                continue
            limits = self.fleet.limits[members].min(axis=0)
            fits = self.fleet.columns[np.arange(len(limits)), limits] >= self.loads[replica]
            fits[: variant + 1] = False
            if fits.any():
                larger = int(np.flatnonzero(fits)[-1])
                worth = self.fleet.accuracy[larger] - self.fleet.accuracy[variant]
                gain = float(self.fleet.value[members].sum() * worth)
                if gain > best:
                    best, upgrade = gain, (replica, larger)
        if upgrade is None:
            return False
        self.variants[upgrade[0]] = upgrade[1]
        self._read_replicas()
        return True

    def divide(self, effort: Effort) -> bool:
        """Divide the clients of two replicas anew, with any two variants: first with an unmapped
        client added, then as they are, then with an unmapped client in place of another."""
        weight, limits = self.fleet.weight, self.fleet.limits
        out = [client for client in np.flatnonzero(self.at == UNMAPPED) if limits[client].any()]
        pairs = [
            (first, second, np.flatnonzero((self.at == first) | (self.at == second)))
            for first, second in combinations(range(len(self.variants)), 2)
        ]
        return (
            any(
                self._divided(first, second, np.append(members, client), effort)
                for client in out
                for first, second, members in pairs
            )
            or any(self._divided(*pair, effort) for pair in pairs)
            or any(
                self._divided(first, second, np.append(np.delete(members, at), client), effort)
                for client in out
                for first, second, members in pairs
                if effort.tries > 0
                for at in np.flatnonzero(weight[members] <= weight[client])
            )
        )

    def _divided(self, first: int, second: int, members: NDArray[np.int64], effort: Effort) -> bool:
        """Have two replicas serve exactly these clients if that is a gain."""
        fleet = self.fleet
        before = np.flatnonzero((self.at == first) | (self.at == second))
        grows = float(fleet.weight[members].sum() - fleet.weight[before].sum()) > _LEAST
        least = (
            -1.0 if grows else float((self.accuracy[self.at[before]] * self.rates[before]).sum())
        )
        division = divided(fleet, members, least=least, effort=effort)
        if division is None:
            return False
        gain = fleet.value[division.first].sum() * fleet.accuracy[division.variants[0]]
        gain += fleet.value[division.second].sum() * fleet.accuracy[division.variants[1]]
        gain -= (fleet.value[before] * self.accuracy[self.at[before]]).sum()
        if not grows and gain <= _LEAST:
            return False  # a gain by rate, but not by weight
        self.at[before] = UNMAPPED
        self.at[division.first], self.at[division.second] = first, second
        self.variants[first], self.variants[second] = division.variants
        self._read_replicas()
        return True

    def assignment(self) -> Assignment:
        return ordered(self.variants, self.at.tolist())


def ordered(variants: Sequence[int], clients: Sequence[int]) -> Assignment:
    """Return an assignment with the largest variants first, from replicas in any order."""
    order = sorted(range(len(variants)), key=lambda replica: -variants[replica])
    place = {replica: at for at, replica in enumerate(order)} | {UNMAPPED: UNMAPPED}
    return Assignment(
        tuple(variants[replica] for replica in order), tuple(place[at] for at in clients)
    )
