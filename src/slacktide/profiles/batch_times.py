"""`BatchTimes`: how long batches of one pool take, as the engine and every scheduler ask it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from slacktide.domain import Batch, ExitPolicy, ExitReport, Leaving, Request
from slacktide.profiles.time_distribution import TimeDistribution

if TYPE_CHECKING:
    from slacktide.profiles.shape_classes import Classes


class BatchTimes:
    """Predicted times of the batches of one pool, seconds. Non-decreasing in rows, non-increasing
    in cores.

    A subclass defines `of`. The other methods describe predictions that never change, take all
    requests to be alike, and know no early exits.
    """

    learns: ClassVar[bool] = False
    """Whether predictions follow what is observed."""

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        """The time of a batch of `rows` ≥ 1 rows: of just these members, or of any requests if
        none are named."""
        raise NotImplementedError

    def classes(self, cores: int) -> Classes | None:
        """The requests by how much work they are; None while all are taken to be alike. The same
        object until `revision` rises."""
        return None

    @property
    def revision(self) -> int:
        """Rises when predictions have changed enough for cached tables to be rebuilt."""
        return 0

    # Learning

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Learn from one finished batch."""

    def discount(self, request: Request | None = None) -> None:
        """Trust predictions less, or those for requests like this one: it was refused because of
        them while nothing ran."""

    def settle(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Take for the truth that a batch like this one takes `seconds`, however far that is from
        the profile: two runs have shown that predictions are far too long."""

    # Early exits

    @property
    def soonest(self) -> float:
        """Part of its own lane time after which a request may have its answer; 1: all of it."""
        return 1.0

    def follow(self, policy: ExitPolicy | None) -> None:
        """Have requests leave early by this policy from now on; None: they do not."""

    def whole(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        """The time of a batch that certainly runs to the end."""
        return self.of(rows, cores, members)

    def saw(
        self, batch: Batch, report: ExitReport | None, seconds: float | None, cores: int
    ) -> None:
        """Learn from a batch whose members might leave early; `observe` is not called for it.
        `seconds`: what it took; None where that teaches nothing."""
        if seconds is not None and batch.leaving is not Leaving.SHRINK:
            self.observe(seconds, batch.members, batch.rows, cores)
