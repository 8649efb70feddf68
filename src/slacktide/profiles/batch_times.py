"""`BatchTimes`: predictions of batch times, the base class for the engine and every scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from slacktide.domain import Batch, ExitPolicy, ExitReport, Leaving, Request
from slacktide.profiles.time_distribution import TimeDistribution

if TYPE_CHECKING:
    from slacktide.profiles.shape_classes import Classes


class BatchTimes:
    """Predicted times of the batches of one pool, in seconds. Non-decreasing in rows,
    non-increasing in cores.

    A subclass defines `of`. The defaults of the other methods suit predictions that never change,
    treat all requests alike, and have no early exits.
    """

    learns: ClassVar[bool] = False
    """Whether predictions learn from finished batches."""

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        """The time of a batch of `rows` ≥ 1 rows with these members; without members, of any
        requests."""
        raise NotImplementedError

    def classes(self, cores: int) -> Classes | None:
        """The classes of requests by work; None while all are treated alike. The same object until
        `revision` rises."""
        return None

    @property
    def revision(self) -> int:
        """Rises when predictions have changed enough for cached tables to be rebuilt."""
        return 0

    # Learning

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Learn from one finished batch."""

    def discount(self, request: Request | None = None) -> None:
        """Trust predictions less, or only those for requests like `request`: because of them, a
        request was refused although a lane was idle."""

    def settle(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Predict `seconds` for batches like this one, however far from the profile: two trials
        have shown that predictions are far too long."""

    # Early exits

    @property
    def soonest(self) -> float:
        """Share of a request's own lane time after which its answer may come; 1: not before the
        end."""
        return 1.0

    def follow(self, policy: ExitPolicy | None) -> None:
        """Predict early exits by this policy from now on; None: no early exits."""

    def whole(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        """The time of a batch that runs to the end."""
        return self.of(rows, cores, members)

    def saw(
        self, batch: Batch, report: ExitReport | None, seconds: float | None, cores: int
    ) -> None:
        """Learn from a batch with early exits; `observe` is not called for it. `seconds`: its
        duration; None if that teaches nothing."""
        if seconds is not None and batch.leaving is not Leaving.SHRINK:
            self.observe(seconds, batch.members, batch.rows, cores)
