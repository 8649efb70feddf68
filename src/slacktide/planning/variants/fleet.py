"""`Fleet`: replicas that each run one variant, and clients that are each mapped to one replica.

Smaller variants of a model take less time and are less accurate. A client sends frames at a rate,
and has a *budget* for each variant: the part of its latency objective that is left for the server
if frames have the size of that variant (paper: compute time, §3.3). A replica that runs variant j
in batches of b serves a set of clients if

    2 · l_j(b) ≤ budget of each of them for j   (a frame waits one batch at most; eq. 6)
    sum of their rates ≤ t_j(b) = b / l_j(b)    (eq. 7)

`Fleet` holds both tests as tables, on one grid of rates, so that all searches agree. Replicas are
planned separately even if replicas of one variant then serve one queue: if they were planned
together, the client with the tightest budget would limit the batches of all.

Source: Jellyfish, §4.1 (problem P1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MOST_COLUMNS = 4096
"""Maximum grid steps up to the largest capacity of a replica. If exact steps would be finer, rates
are rounded up and capacities down."""
UNMAPPED = -1


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of a model. Raises ValueError that names the field."""

    name: str
    accuracy: float
    """Accuracy of its answers, within (0, 1]."""
    seconds: tuple[float, ...]
    """Seconds of a batch of 1, 2, … rows, p99 or less; positive, non-decreasing."""
    paces: tuple[float, ...] = ()
    """The same for many batches in a row; empty: `seconds`."""

    def __post_init__(self) -> None:
        if not 0.0 < self.accuracy <= 1.0:
            raise ValueError(f"accuracy: expected more than 0 and at most 1, got {self.accuracy}")
        if not self.seconds or not all(0.0 < seconds < math.inf for seconds in self.seconds):
            raise ValueError(f"seconds: expected positive times, got {self.seconds}")
        if list(self.seconds) != sorted(self.seconds):
            raise ValueError("seconds: expected times that do not fall with the batch")

    def rates(self) -> list[float]:
        """Return the frames per second of a replica in batches of 1, 2, … rows."""
        return [rows / pace for rows, pace in enumerate(self.paces or self.seconds, 1)]

    def most(self, budget: float) -> float:
        """Return the most frames per second that a replica serves for clients with this budget."""
        fitting = zip(self.rates(), self.seconds, strict=True)
        return max([rate for rate, seconds in fitting if 2.0 * seconds <= budget], default=0.0)


@dataclass(frozen=True, slots=True)
class Client:
    """A client that sends frames. Raises ValueError that names the field."""

    name: str
    rate: float
    """Frames per second."""
    budgets: tuple[float, ...]
    """Seconds left for the server if frames have the size of a variant, by variant."""
    weight: float = 1.0
    floor: float = 0.0
    """Lowest accuracy that is of use to it."""

    def __post_init__(self) -> None:
        for name in ("rate", "weight"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which variants run, and which replica each client is mapped to."""

    variants: tuple[int, ...]
    """Variant of each replica, largest first."""
    clients: tuple[int, ...]
    """Replica of each client, or `UNMAPPED`."""


@dataclass(frozen=True, order=True, slots=True)
class AssignmentScore:
    """Order of assignments: by mapped clients, then by accuracy."""

    mapped: float
    """Total weight of the mapped clients."""
    accuracy: float
    """Sum of accuracy · rate · weight over the mapped clients (eq. 2)."""


class Fleet:
    """Replicas and clients to match, with tables of feasible batches and rates; immutable."""

    def __init__(
        self, variants: Sequence[Variant], clients: Sequence[Client], replicas: int
    ) -> None:
        """`variants`: smallest first, with accuracies that do not fall. Raises ValueError."""
        if not variants:
            raise ValueError("variants: expected at least one")
        if any(a.accuracy > b.accuracy for a, b in pairwise(variants)):
            raise ValueError("variants: expected accuracies that do not fall with size")
        if replicas < 1:
            raise ValueError(f"replicas: expected at least 1, got {replicas}")
        for client in clients:
            if len(client.budgets) != len(variants):
                raise ValueError(f"{client.name}: budgets: expected one for each variant")
        self.variants = tuple(variants)
        self.clients = tuple(clients)
        self.replicas = replicas
        self.batches = max(len(variant.seconds) for variant in variants)
        """The largest batch that any variant takes."""

        self.accuracy = np.array([variant.accuracy for variant in variants])
        self.weight = np.array([client.weight for client in clients])
        self.value = self.weight * np.array([client.rate for client in clients])
        """Value of a client, to be multiplied by the accuracy it gets."""
        self._worth = tuple(zip(self.weight.tolist(), self.value.tolist(), strict=True))
        self.pairs = np.tril_indices(len(variants))
        """Pairs of variants: (firsts, seconds); the second of a pair is no larger."""
        self._throughput = np.zeros((len(variants), self.batches + 1))
        """(variant, b): the most frames per second in batches of b or less."""
        for at, variant in enumerate(variants):
            rates = variant.rates()
            rates += [0.0] * (self.batches - len(rates))
            self._throughput[at, 1:] = np.maximum.accumulate(rates)
        self.step = _step([client.rate for client in clients], float(self._throughput.max()))
        """Frames per second between two columns of the grid."""
        self.rates = tuple(math.ceil(client.rate / self.step - 1e-9) for client in clients)
        """Rate of each client, in columns."""
        self.limits = self._limits()
        """(client, variant): the largest batch that its budget allows; 0: not even one row."""
        self.columns = np.floor(self._throughput / self.step + 1e-9).astype(np.int64)
        """(variant, b): capacity of a replica in batches up to b, in columns."""
        masks = [[(2 << columns) - 1 for columns in row] for row in self.columns.tolist()]
        self.orders = tuple(
            tuple(
                (client, self.rates[client], masks[at][self.limits[client, at]])
                for client in np.argsort(-self.limits[:, at], kind="stable").tolist()
                if self.limits[client, at] > 0
            )
            for at in range(len(variants))
        )
        """By variant, in order of falling budgets: (client, rate, mask of bits 0 to the capacity of
        a replica whose tightest client this is)."""

    def _limits(self) -> NDArray[np.int64]:
        limits = np.zeros((len(self.clients), len(self.variants)), np.int64)
        if self.clients:
            budgets = np.array([client.budgets for client in self.clients])
            floors = np.array([client.floor for client in self.clients])
            for at, variant in enumerate(self.variants):
                twice = 2.0 * np.array(variant.seconds)
                limits[:, at] = np.searchsorted(twice, budgets[:, at] + 1e-12, side="right")
                limits[floors > variant.accuracy, at] = 0
        return limits

    def servable(self) -> frozenset[int]:
        """Return the clients that some variant can serve alone."""
        if not self.clients:
            return frozenset()
        most = self.columns[np.arange(len(self.variants)), self.limits]
        return frozenset(np.flatnonzero((self.rates <= most.T).any(axis=0)).tolist())

    def score(self, assignment: Assignment) -> AssignmentScore:
        mapped = accuracy = 0.0
        accuracies = [self.variants[variant].accuracy for variant in assignment.variants]
        for replica, (weight, value) in zip(assignment.clients, self._worth, strict=True):
            if replica != UNMAPPED:
                mapped += weight
                accuracy += accuracies[replica] * value
        return AssignmentScore(mapped, accuracy)

    def batch_of(self, assignment: Assignment, replica: int) -> int:
        """Return the smallest batch in which a replica can serve its clients; 1 if it has none.
        Raises ValueError if it cannot serve them."""
        variant = assignment.variants[replica]
        members = [client for client, at in enumerate(assignment.clients) if at == replica]
        load = sum(self.rates[client] for client in members)
        most = min((int(self.limits[client, variant]) for client in members), default=self.batches)
        fitting = np.flatnonzero(self.columns[variant, : most + 1] >= load)
        if not len(fitting):
            raise ValueError(f"replica {replica} of variant {variant} cannot serve its clients")
        return max(1, int(fitting[0]))


def _step(rates: Sequence[float], capacity: float) -> float:
    """Return the largest step of which all rates are multiples, unless that is too fine."""
    finest = capacity / MOST_COLUMNS
    step = Fraction(0)
    for rate in set(rates):
        exact = Fraction(rate).limit_denominator(1000)
        if abs(float(exact) - rate) > 1e-9 * rate:
            return finest
        step = Fraction(
            math.gcd(step.numerator * exact.denominator, exact.numerator * step.denominator),
            step.denominator * exact.denominator,
        )
    return max(float(step), finest) if step else finest
