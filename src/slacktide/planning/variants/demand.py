"""`Session`: the rate of a client and the time that its link leaves for the server.
`SessionlessRequests`: rate and budget of all other requests.

    bytes of a frame of p pixels  ~ p^0.83       (JPEG; the factor is measured)
    budget for variant j          = SLO − bytes of j / bandwidth − round trip − overhead
                                    0 if the link does not carry them at the client's rate

Clients' statements are not trusted: they are kept within bounds, and measurements replace them.

Source: Jellyfish, §3.3 and §4.1; the formula for bytes and the learnt headroom are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slacktide.domain import Request
from slacktide.planning.sessions import SessionMeasured, SessionOpened

BYTES_PER_PIXEL = 0.6
"""Bytes per pixel of JPEG pictures 128 pixels wide, until a client's pictures are measured."""
PIXELS = 128 * 128
POWER = 0.83
"""Bytes of a picture grow with this power of its pixels."""
RATE_MOST = 240.0
"""Maximum frames per second to plan for one session."""
WEIGHTS = (1 / 16, 16.0)


class Session:
    """A client that streams frames."""

    __slots__ = ("_bytes", "measured", "opened", "rate", "slo", "weight")

    def __init__(self, opened: SessionOpened) -> None:
        self.measured: SessionMeasured | None = None
        self.restate(opened)

    def restate(self, opened: SessionOpened) -> None:
        """Adopt the needs that the client states, at the beginning or later."""
        self.opened = opened
        self.slo = _within(opened.slo, 0.0, 3600.0, 0.0)
        self.weight = _within(opened.weight, *WEIGHTS, 1.0)
        self._update()

    def measure(self, measured: SessionMeasured) -> None:
        """Take a measurement of its link and frames."""
        self.measured = measured
        self._update()

    def _update(self) -> None:
        link = self.measured
        rate = self.opened.rate if link is None or link.rate <= 0.0 else link.rate
        rate = _within(rate, 0.5, RATE_MOST, RATE_MOST if rate == math.inf else 1.0)
        self.rate = math.ceil(2.0 * rate - 0.2) / 2.0
        """Frames per second on a coarse grid, so that small changes do not change plans."""
        density, pixels = (0.0, 0.0) if link is None else (link.bytes_per_pixel, link.pixels)
        if not 0.0 < density < math.inf:
            density = BYTES_PER_PIXEL
        if not 0.0 < pixels < math.inf:
            pixels = PIXELS
        self._bytes = density * math.pow(pixels, 1.0 - POWER)

    @property
    def floor(self) -> float:
        """Lowest accuracy that is of use to it."""
        return _within(self.opened.floor, 0.0, 2.0, 0.0)

    def frame(self, side: int) -> float:
        """Return the bytes of a frame of `side` × `side` pixels."""
        return self._bytes * math.pow(side, 2.0 * POWER)

    def budget(self, side: int, *, share: float) -> float:
        """Return the seconds left for the server with frames of this side; 0: no time. `share`:
        share of the bandwidth to plan with."""
        return self.slo if self.measured is None else self.budgets((side,), share=share)[0]

    def budgets(self, sides: Sequence[int], *, share: float) -> tuple[float, ...]:
        """Return the budget of each variant. Before the link is measured, only the smallest variant
        has a budget."""
        link = self.measured
        if link is None:
            return (self.slo, *(0.0 for _ in sides[1:]))
        bandwidth = _within(link.bytes_per_s, 0.0, 1e12, 0.0) * share
        if bandwidth <= 0.0:
            return (0.0,) * len(sides)
        rtt, overhead = (_within(delay, 0.0, 3600.0, 0.0) for delay in (link.rtt, link.overhead))
        seconds = [self.frame(side) / bandwidth for side in sides]
        return tuple(
            [
                max(0.0, self.slo - upload - rtt - overhead) if upload * self.rate <= 1.0 else 0.0
                for upload in seconds
            ]
        )


class SessionlessRequests:
    """Requests without a session that ask for one size, or for none."""

    FALL, RISE = 0.2, 0.01
    """Shares by which a shorter and a longer request move `budget`: one short request in twenty is
    enough to keep it low."""

    __slots__ = ("_rows", "_since", "budget", "rate")

    def __init__(self, *, now: float) -> None:
        self.rate = 0.0
        """Rows per second."""
        self.budget = 0.0
        """Average seconds from arrival to deadline, weighted towards short budgets."""
        self._rows, self._since = 0, now

    def count(self, request: Request, *, now: float) -> bool:
        """Count a request. Returns whether none was expected before."""
        budget = 3600.0 if request.best_effort else min(3600.0, request.deadline - now)
        if not self.budget:
            self.budget = budget
        gain = self.FALL if budget < self.budget else self.RISE
        self.budget += gain * (budget - self.budget)
        self._rows += request.rows
        return not self.rate and self._rows == request.rows

    @property
    def expected(self) -> bool:
        """Whether any request came recently."""
        return self.rate > 0.0 or self._rows > 0

    def update_rate(self, *, now: float) -> None:
        """Update the rate, which rises immediately and falls slowly."""
        seconds = now - self._since
        if seconds > 0.0:
            rate = self._rows / max(seconds, 0.5)
            self.rate = max(rate, self.rate * 0.5 ** (seconds / 2.0))
            if self.rate < 0.1:
                self.rate = 0.0
            self._rows, self._since = 0, now


class LearnedHeadroom:
    """The share of a capacity to plan with. It falls while the share of frames lost for lack of
    this capacity exceeds a target, and rises otherwise."""

    GAIN, WORST, WORST_OF_TAILS = 0.004, 8.0, 3.0
    """Change per second if the lost share is 0 or twice the target; limits to the multiples of the
    target that count, the second for batch times that scatter. A burst of slowness must not take
    away more than the time until the next one gives back."""

    __slots__ = ("_ended", "_lost", "_target_loss", "least", "share")

    def __init__(self, target_loss: float, *, least: float = 0.6, share: float = 1.0) -> None:
        self.share, self.least = share, least
        self._target_loss = target_loss
        self._lost = self._ended = 0.0

    def learn(self, lost: float, ended: float, *, seconds: float, patience: float = 1.0) -> None:
        """Learn from the frames lost and ended so far. `seconds`: since the last call. `patience`:
        factor on the target, more than 1 for batch times that scatter."""
        frames, missed = ended - self._ended, lost - self._lost
        self._lost, self._ended = lost, ended
        if frames > 0 and seconds > 0.0:
            excess = missed / (patience * self._target_loss * frames) - 1.0
            change = (
                self.GAIN
                * min(seconds, 1.0)
                * min(self.WORST if patience == 1.0 else self.WORST_OF_TAILS, excess)
            )
            self.share = min(1.0, max(self.least, self.share - change))


class LearnedCaution(LearnedHeadroom):
    """How much caution to give up where batch times scatter: batches are planned to take median ·
    scatter^(1 − share), p99s at 0 and medians at 1.

    With p99s, a frame would wait for a slow batch and then run in another one, which hardly ever
    happens. So at most ROOM medians are planned with; frames that are lost then ran in batches
    slower than any sensible room.
    """

    GAIN, ROOM = 0.02, 1.15

    __slots__ = ()

    def __init__(self, target_loss: float) -> None:
        super().__init__(target_loss, least=0.0, share=0.0)

    def scatters(self, scatter: float) -> None:
        """Note the present p99 ÷ median of batch times."""
        self.least = 1.0 - min(1.0, math.log(self.ROOM) / max(math.log(scatter), 1e-9))
        self.share = max(self.least, self.share)


def _within(value: float, least: float, most: float, otherwise: float) -> float:
    """Return `value` kept within bounds; `otherwise` if it is not finite."""
    return min(max(value, least), most) if math.isfinite(value) else otherwise
