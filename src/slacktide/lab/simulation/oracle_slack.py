"""`OracleSlack`: the rule of `slack` with classes, knowing the length of every request.

A yardstick for simulations, not a policy for a server: it shows how much could be gained by knowing
more than any server can.

Lengths take the place of the classes of `slack`. Each length x and size k give one candidate batch:
the first k requests (or fewer) in deadline order that are no longer than x and on time in a batch
of k rows of length x. A larger size must save a share PAYS of the time per row, or it only blocks
the lane. A batch takes c0 + c1 · k · max(l) with certainty, so its score is

    score = Σ worth_i · (1 − κ (1 − e^(−spare_i / τ))) / T

with worth, spare and τ as in `scheduling/slack_classes.py`. (Earliest deadline first with true
lengths is simpler but no yardstick: it wastes the lane on requests about to be late, and finishes
less than `orloj` does without knowing lengths.)

The rule looks one batch ahead, so it is not an upper bound. No single κ is best everywhere: if the
fixed part of a batch is small and deadlines are long, the κ of `slack` waits too long. Therefore
each of KAPPAS gets a run, and the run with the most answers in time counts (docs/decisions/0014
lists what else was tried, such as batches of every number of members).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slacktide.domain import Batch, Notice, Options, Reason, Replica, Request, option
from slacktide.engine import Idle, PoolView, Proposal
from slacktide.lab.simulation.world.hardware import length_of
from slacktide.profiles import BatchLatency, BatchTimes
from slacktide.scheduling import DeadlineOptions, DeadlinePolicy, SlackOptions
from slacktide.scheduling.queue import Entry
from slacktide.scheduling.tables import size_grid

MOST_LENGTHS = 32
"""Maximum number of lengths x that are tried; more are sampled evenly by rank."""

COST_GAIN = 0.05
"""Weight of the newest batch in the average cost of a request."""

PAYS = 0.05
"""Minimum share of the time per row that a larger size must save to be tried."""

KAPPAS = (SlackOptions().deferral_discount, 0.6, 0.3)
"""Values of κ; each gets a run, and the best run counts."""


@dataclass(frozen=True, slots=True)
class OracleSlackOptions(Options):
    """The options of `slack` that matter here."""

    deferral_discount: float | None = option(
        None,
        "As for `slack`; none: several values are tried, and the best is used.",
        least=0,
        most=1,
        aliases=("kappa",),
    )
    length_exponent: float = option(
        SlackOptions().length_exponent, "As for `slack`.", least=0, aliases=("theta",)
    )


class OracleSlack(DeadlinePolicy):
    """A `Scheduler` (engine/ports.py) for one-row requests. Never refuses, never waits."""

    Options: ClassVar = OracleSlackOptions

    def __init__(
        self,
        latency: BatchLatency,
        *,
        mean_length: float,
        max_batch: int,
        times: BatchTimes,
        view: PoolView,
        options: OracleSlackOptions | None = None,
    ) -> None:
        """`mean_length`: mean length of all arrivals."""
        super().__init__(
            DeadlineOptions(admission=False, max_queue=None),
            max_batch=max_batch,
            times=times,
            view=view,
            lead=lambda times, rows, cores: 0.0,
        )
        self._latency = latency
        options = options or OracleSlackOptions()
        stated = options.deferral_discount
        self._discount = KAPPAS[0] if stated is None else stated
        self._exponent = options.length_exponent
        self._cost = self._mean_alone = latency.seconds(1, mean_length)

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Give up requests that would be late even in a batch of one that starts now."""
        dropped = [entry[1] for entry in self._timed.order if self._due(entry) <= now]
        self._timed.remove(dropped)
        return [(id, Reason.HOPELESS) for id in dropped]

    def next_expiry(self) -> float | None:
        """Return the earliest of all latest starts; None without requests."""
        return min(map(self._due, self._timed.order), default=None)

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        """Return the batch worth most per second of lane time. Does not change the queue."""
        order = self.pending()
        if not order:
            return Idle()
        members = self._best(order, min(self._max_batch, replica.max_batch), now)
        return Proposal(tuple(members), len(members))

    def take(self, batch: Batch) -> None:
        """Remove the members from the queue, and update the mean lane time per request."""
        took = self._latency.seconds(batch.rows, max(map(length_of, batch.members)))
        self._cost += COST_GAIN * (took / len(batch.members) - self._cost)
        super().take(batch)

    def _refuse(self, request: Request | Notice, rows: int, now: float) -> Reason | None:
        if rows != 1:
            raise ValueError(f"request {request.id} has {rows} rows, not one")
        return None

    def _due(self, entry: Entry) -> float:
        """Return the latest start of a batch of this request alone that is on time."""
        return entry[0] - self._latency.seconds(1, length_of(entry[2]))

    def _best(self, order: Sequence[Request], limit: int, now: float) -> list[Request]:
        latency, kappa = self._latency, self._discount
        tau = len(order) * self._cost / self._view.lanes + self._mean_alone
        deadlines = np.array([request.deadline for request in order])
        lengths = np.array([length_of(request) for request in order])
        alone = latency.c0 + latency.c1 * latency.paid(1) * lengths
        penalties = np.array([request.penalty for request in order])
        worth = penalties * (alone / self._mean_alone) ** self._exponent

        best, chosen = 0.0, np.zeros(1, dtype=np.int64)
        for longest in _spread(np.unique(lengths)):
            fitting = lengths <= longest
            least = np.inf
            for size in self._sizes(limit):
                per_row = latency.seconds(size, longest) / size
                if per_row > (1.0 - PAYS) * least:
                    continue
                least = per_row
                able = fitting & (deadlines >= now + latency.seconds(size, longest))
                members = able.nonzero()[0][:size]
                if not members.size:
                    continue
                took = latency.seconds(members.size, float(lengths[members].max()))
                spare = np.maximum(deadlines[members] - now - alone[members] - took, 0.0)
                value = worth[members] * (1.0 - kappa * (1.0 - np.exp(-spare / tau)))
                score = float(value.sum()) / took
                if score > best:
                    best, chosen = score, members
        return [order[int(i)] for i in chosen]

    def _sizes(self, limit: int) -> Sequence[int]:
        padded = [size for size in self._latency.sizes if size < limit]
        return (*padded, limit) if padded else size_grid(limit)


def _spread(lengths: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Sequence[float]:
    """Return at most MOST_LENGTHS of `lengths` (ascending), including the longest."""
    if lengths.size > MOST_LENGTHS:
        places = np.linspace(0, lengths.size - 1, MOST_LENGTHS)
        lengths = lengths[np.round(places).astype(np.int64)]
    sample: list[float] = lengths.tolist()
    return sample
