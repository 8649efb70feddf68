"""Estimates the rate of a client's link from its past transfers. Pure.

The rate is smoothed as in Jellyfish (§5): an adaptive filter follows fully if the error is as large
as any recent error, and slowly if it is small; the estimate is the harmonic mean of the last
second. We add to this:

- A transfer slower than expected counts in full, and the mean never exceeds its rate; otherwise
  all frames of the next second would be late.
- A larger drop clears the history.
- A transfer of little more than a packet weighs little: it shows the client's promptness, not the
  link's rate.
- A transfer that takes too long counts before it has ended.
- An old estimate fades towards the guess.

The estimate is used wherever the same clock measures the start and the end of a transfer: in the
server (a frame from its announcement to its last byte, a body from its first byte), in the client
(a frame from its sending to its acknowledgement), and in the simulator, for its servers and its
clients.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import exp, inf, log

GUESS_BYTES_PER_S = 12.5e6
"""Rate of an unknown client: 100 Mbit/s."""
WINDOW_S = 1.0
"""Seconds that the harmonic mean covers."""
FALL = 0.6
"""A transfer slower than this share of the expected rate counts as a drop in bandwidth."""
SILENCE_S = 3.0
"""Seconds without a transfer after which the next transfer counts in full."""
HALF_LIFE_S = 300.0
"""Seconds of silence in which the logarithm of the rate moves halfway to the logarithm of the
guess."""

MAX_CLIENTS = 4096
PACKET = 1500
"""Bytes that arrive together on any link. Transfers of no more than this show no rate."""

_LATE_S = 0.002
"""Delay that a busy loop may add to a transfer before the transfer counts as a drop."""
_ERROR_DECAY = 0.6
_ERRORS = 10
"""Constants of the filter, as published."""
_SAMPLES = 32
_FRAME_DECAY = 0.95
"""Factor by which each frame reduces the weight of the earlier frames."""
_POWER, _PRIOR = 0.83, 0.05
_REFERENCE = (16_384, 10_283)
"""Pixels and bytes of a frame, as assumed before the first frame."""
_LEAST_POWER, _MOST_POWER = 0.3, 1.2
"""Range of plausible powers of the pixels."""
_FASTEST, _LONGEST = 1e-12, 1e6
"""Limits on the seconds of a byte and of a transfer, which keep the arithmetic sound."""


class LinkEstimate:
    """Estimates the rate of one direction of a link."""

    __slots__ = (
        "_error", "_errors", "_last_at", "_mean", "_mean_until", "_pace", "_recent", "guess",
        "measured",
    )  # fmt: skip

    def __init__(self, guess: float = GUESS_BYTES_PER_S) -> None:
        self.guess = guess
        """Bytes per second, > 0, assumed until the first measurement. May be changed."""
        self.measured = False
        self._pace = 0.0
        """Smoothed seconds per byte, once measured."""
        self._error = 0.0
        self._errors: deque[float] = deque(maxlen=_ERRORS)
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=_SAMPLES)
        """Recent transfers: end, bytes, and seconds of these bytes at the pace just after it."""
        self._last_at = -inf
        """End of the last transfer."""
        self._mean, self._mean_until = 0.0, -inf
        """Cached rate, and when it expires unless another transfer ends."""

    def observe(self, nbytes: int, seconds: float, *, now: float) -> bool:
        """Record a transfer of `nbytes` in `seconds` that ended now. Returns whether the bandwidth
        has dropped, which clears the history."""
        if nbytes <= PACKET or not 0.0 < seconds < inf:
            return False
        fell = self.silent(nbytes, seconds, now=now)
        if not fell:
            sample = max(min(seconds, _LONGEST) / nbytes, _FASTEST)
            expected = self._pace if self.measured else 1.0 / self.guess
            gain = self._gain(abs(sample - expected), now)
            weight = (1.0 if sample > expected else gain) * nbytes / (nbytes + PACKET)
            self._pace = expected + weight * (sample - expected)
        self._recent.append((now, nbytes, nbytes * self._pace))
        self._last_at, self._mean_until = now, -inf
        self.measured = True
        return fell

    def silent(self, nbytes: int, seconds: float, *, now: float) -> bool:
        """Record that an unfinished transfer has brought only `nbytes` in `seconds`. Like
        `observe`, but changes nothing unless this is a drop."""
        if nbytes <= PACKET or not 0.0 < seconds < inf:
            return False
        if seconds <= nbytes / (FALL * self.bytes_per_s(now=now)) + _LATE_S:
            return False
        self._pace = min(seconds, _LONGEST) / nbytes
        self._recent.clear()
        self._errors.clear()
        self._error = 0.0
        self._last_at, self._mean_until = now, -inf
        self.measured = True
        return True

    def bytes_per_s(self, *, now: float) -> float:
        """The estimated rate in bytes per second, > 0."""
        if not self.measured:
            return self.guess
        if now <= self._mean_until:
            return self._mean
        nbytes = seconds = 0.0
        for at, size, took in reversed(self._recent):
            if now - at > WINDOW_S:
                break
            nbytes += size
            seconds += took
            self._mean_until = at + WINDOW_S
        if nbytes:
            self._mean = min(nbytes / seconds, 1.0 / self._pace)
            return self._mean
        rate, silence = 1.0 / self._pace, now - self._last_at - WINDOW_S
        if silence <= 0.0:
            return rate
        return float(self.guess * (rate / self.guess) ** 0.5 ** (silence / HALF_LIFE_S))

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        """Expected seconds to transfer `nbytes`."""
        return nbytes / self.bytes_per_s(now=now)

    def _gain(self, error: float, now: float) -> float:
        """Share of an error to follow, 0 to 1 (Kim and Noble 2001): the smoothed error divided by
        the largest recent error."""
        if now - self._last_at > SILENCE_S:
            self._errors.clear()
            self._error = 0.0
            return 1.0
        self._error = _ERROR_DECAY * self._error + (1.0 - _ERROR_DECAY) * error
        self._errors.append(self._error)
        most = max(self._errors)
        return self._error / most if most > 0.0 else 1.0


class LinkEstimates:
    """Link estimates by client. The client silent for longest is dropped first."""

    def __init__(self) -> None:
        self._links: OrderedDict[str, LinkEstimate] = OrderedDict()

    def observe(self, client: str, nbytes: int, seconds: float, *, now: float) -> None:
        """See LinkEstimate."""
        link = self._links.pop(client, None) or LinkEstimate()
        self._links[client] = link
        link.observe(nbytes, seconds, now=now)
        if len(self._links) > MAX_CLIENTS:
            self._links.popitem(last=False)

    def transfer_time(self, client: str, nbytes: int, *, now: float) -> float:
        """See LinkEstimate."""
        link = self._links.get(client)
        return nbytes / GUESS_BYTES_PER_S if link is None else link.transfer_time(nbytes, now=now)


class BytesPerPixel:
    """Estimates the bytes of a client's frames as a power of their pixels.

    Larger pictures of a scene have fewer bytes per pixel. Until two sizes have been observed, the
    power is that of JPEG (quality 90) on the videos of Jellyfish. After that, it comes from a
    regression of the logarithms in which older frames fade and the JPEG power acts as a prior.
    """

    __slots__ = ("_cross", "_mean_bytes", "_mean_pixels", "_spread", "_weight")

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean_pixels, self._mean_bytes = log(_REFERENCE[0]), log(_REFERENCE[1])
        """Means of the logarithms."""
        self._spread = self._cross = 0.0
        """Weighted sums, about the means, of squared pixels and of pixels times bytes."""

    def observe(self, nbytes: int, pixels: int) -> None:
        """Record a frame of `nbytes` with this many pixels."""
        if nbytes <= 0 or pixels <= 0:
            return
        earlier = self._weight * _FRAME_DECAY
        self._weight = earlier + 1.0
        off_pixels = log(pixels) - self._mean_pixels if earlier else 0.0
        if not earlier:
            self._mean_pixels, self._mean_bytes = log(pixels), log(nbytes)
        off_bytes = log(nbytes) - self._mean_bytes
        share = earlier / self._weight
        self._spread = _FRAME_DECAY * self._spread + share * off_pixels * off_pixels
        self._cross = _FRAME_DECAY * self._cross + share * off_pixels * off_bytes
        self._mean_pixels += off_pixels / self._weight
        self._mean_bytes += off_bytes / self._weight

    def of(self, pixels: int) -> float:
        """Expected bytes of a frame with this many pixels."""
        if pixels <= 0:
            return 0.0
        power = (self._cross + _PRIOR * _POWER) / (self._spread + _PRIOR)
        power = min(max(power, _LEAST_POWER), _MOST_POWER)
        return exp(self._mean_bytes + power * (log(pixels) - self._mean_pixels))
