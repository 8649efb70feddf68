"""`clipper`: first in, first out, in batches whose size is found by trial (Clipper, NSDI 2017).

The size grows by a constant while answers come in time and shrinks by a factor once one does not:
additive increase, multiplicative decrease (§4.3 there). "In time" is judged by the latency that the
client sees, waiting included. That reading fits the figures which Orloj's Tables 2 and 3 give for
Clipper; judged by the batch time alone it would do far better than they say. A published baseline:
nothing is predicted, nothing refused, and late requests run all the same.

Each request is held to its own deadline, so unequal ones need no common objective: a batch was slow
if any of its members is late. Best effort is never late.
"""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.domain import Batch, Replica
from slacktide.domain.options import option
from slacktide.engine.ports import Idle, Proposal
from slacktide.scheduling.arrival_policy import ArrivalPolicy
from slacktide.scheduling.options import QueueOptions


@dataclass(frozen=True, slots=True)
class ClipperOptions(QueueOptions):
    """Options of `clipper`."""

    increase: float = option(
        1.0, "Rows that the batch size grows by after a batch on time.", above=0
    )
    decrease: float = option(
        0.9, "What the batch size is multiplied by after a late one.", above=0, below=1
    )


class Clipper(ArrivalPolicy):
    """First in, first out, with a batch size that feels its way."""

    Options = ClipperOptions

    def __init__(self, options: ClipperOptions, *, max_batch: int, **known: object) -> None:
        super().__init__(options, max_batch=max_batch)
        self._options = options
        self._size = 1.0
        """Most rows of a batch, not rounded down yet; 1 to max batch."""

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        """The front of the queue, as much as the size of today allows. Changes nothing."""
        size = int(self._size)
        return self._front(lambda _: size, replica)

    def ended(self, batch: Batch, *, now: float) -> None:
        """A late answer makes the next batches smaller, one in time larger."""
        late = any(now > member.deadline and not member.best_effort for member in batch.members)
        options = self._options
        if late:
            self._size = max(1.0, self._size * options.decrease)
        else:
            self._size = min(float(self._max_batch), self._size + options.increase)
