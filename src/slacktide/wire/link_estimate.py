"""How fast a client's bytes come in, as learnt from those that came. Pure.

A rate is smoothed as in Jellyfish (§5): an adaptive filter follows at once where the error is as
large as it has lately been at most, and slowly where it is small; what is asked for is the harmonic
mean of the last second. Added to that: a transfer slower than expected is believed at once, and the
mean is no faster than it, for else every frame of a second would be late; a larger fall makes the
past worthless, so the past is forgotten; what hardly fills a packet shows how prompt a client is
rather than how fast its link, so it weighs little; a transfer that takes too long says so before it
has ended; and what was learnt long ago gives way to the guess.

It is used wherever one clock times transfers: in the server (a frame from its announcement to its
last byte, a body from its first byte), in the client (a frame from its sending to its
acknowledgement), and in the simulator for both.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import exp, inf, log

GUESS_BYTES_PER_S = 12.5e6
"""For a client of which nothing is known: 100 Mbit/s."""
WINDOW_S = 1.0
"""The harmonic mean is over so much."""
FALL = 0.6
"""A transfer at less than this share of the expected rate is a fall of the link."""
SILENCE_S = 3.0
"""After so long without a transfer the next one is believed at once."""
HALF_LIFE_S = 300.0
"""In so long a silence half of what was learnt (in logarithms) gives way to the guess."""

CLIENTS_KEPT = 4096
PACKET = 1500
"""Bytes that come at once whatever the link: what has no more shows no rate."""

_LATE_S = 0.002
"""What a busy loop may add to a transfer. No fall."""
_ERROR_KEPT = 0.6
_ERRORS = 10
"""The filter's constants, as published."""
_SAMPLES = 32
_FRAMES_KEPT = 0.95
"""Of what was known of the size of frames, with each frame."""
_POWER, _PRIOR = 0.83, 0.05
_REFERENCE = (16_384, 10_283)
"""Pixels and bytes of a frame, before any is known."""
_LEAST_POWER, _MOST_POWER = 0.3, 1.2
"""Those outside are accidents."""
_FASTEST, _LONGEST = 1e-12, 1e6
"""Seconds for a byte, and for a transfer: beyond them only arithmetic goes wrong."""


class LinkEstimate:
    """The rate of one link, one way."""

    __slots__ = (
        "_error", "_errors", "_last", "_mean", "_mean_until", "_pace", "_recent", "guess",
        "measured",
    )  # fmt: skip

    def __init__(self, guess: float = GUESS_BYTES_PER_S) -> None:
        self.guess = guess
        """Bytes per second, > 0: holds until something has been measured. May be set anew."""
        self.measured = False
        self._pace = 0.0
        """Seconds for a byte, smoothed, since it was measured."""
        self._error = 0.0
        self._errors: deque[float] = deque(maxlen=_ERRORS)
        self._recent: deque[tuple[float, float, float]] = deque(maxlen=_SAMPLES)
        """When a transfer ended, its bytes, and the seconds these take at the pace after it."""
        self._last = -inf
        """When the last of them ended."""
        self._mean, self._mean_until = 0.0, -inf
        """The rate, and until when it holds unless another transfer ends."""

    def observe(self, nbytes: int, seconds: float, *, now: float) -> bool:
        """`nbytes` that have just come took `seconds`. Whether the link has fallen: what was known
        of it before is then forgotten."""
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
        self._last, self._mean_until = now, -inf
        self.measured = True
        return fell

    def silent(self, nbytes: int, seconds: float, *, now: float) -> bool:
        """So few bytes have come of a transfer that has taken `seconds` so far. As `observe`, but
        it changes nothing unless that is a fall."""
        if nbytes <= PACKET or not 0.0 < seconds < inf:
            return False
        if seconds <= nbytes / (FALL * self.bytes_per_s(now=now)) + _LATE_S:
            return False
        self._pace = min(seconds, _LONGEST) / nbytes
        self._recent.clear()
        self._errors.clear()
        self._error = 0.0
        self._last, self._mean_until = now, -inf
        self.measured = True
        return True

    def bytes_per_s(self, *, now: float) -> float:
        """Bytes per second, > 0."""
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
        rate, silence = 1.0 / self._pace, now - self._last - WINDOW_S
        if silence <= 0.0:
            return rate
        return float(self.guess * (rate / self.guess) ** 0.5 ** (silence / HALF_LIFE_S))

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        """Seconds that `nbytes` are expected to take."""
        return nbytes / self.bytes_per_s(now=now)

    def _gain(self, error: float, now: float) -> float:
        """How much of an error to follow, 0 to 1 (Kim and Noble 2001): the smoothed error by the
        largest of the last ones."""
        if now - self._last > SILENCE_S:
            self._errors.clear()
            self._error = 0.0
            return 1.0
        self._error = _ERROR_KEPT * self._error + (1.0 - _ERROR_KEPT) * error
        self._errors.append(self._error)
        most = max(self._errors)
        return self._error / most if most > 0.0 else 1.0


class LinkEstimates:
    """By client; those that sent nothing for longest are forgotten first."""

    def __init__(self) -> None:
        self._links: OrderedDict[str, LinkEstimate] = OrderedDict()

    def observe(self, client: str, nbytes: int, seconds: float, *, now: float) -> None:
        """See LinkEstimate."""
        link = self._links.pop(client, None) or LinkEstimate()
        self._links[client] = link
        link.observe(nbytes, seconds, now=now)
        if len(self._links) > CLIENTS_KEPT:
            self._links.popitem(last=False)

    def transfer_time(self, client: str, nbytes: int, *, now: float) -> float:
        """See LinkEstimate."""
        link = self._links.get(client)
        return nbytes / GUESS_BYTES_PER_S if link is None else link.transfer_time(nbytes, now=now)


class BytesPerPixel:
    """How large a client's frames become, by their pixels: a power of them, learnt from its frames.

    Larger pictures of a scene have less in a pixel. Until two sizes have been seen the power is
    that of JPEG (quality 90) on the videos of Jellyfish; then it is a regression of the logarithms,
    with the older frames fading and the JPEG power as if it had been seen too.
    """

    __slots__ = ("_cross", "_mean_bytes", "_mean_pixels", "_spread", "_weight")

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean_pixels, self._mean_bytes = log(_REFERENCE[0]), log(_REFERENCE[1])
        """Of the logarithms."""
        self._spread = self._cross = 0.0
        """Sum of squares of the pixels about their mean, and of products."""

    @property
    def known(self) -> bool:
        """Whether a frame has been seen."""
        return self._weight > 0.0

    def observe(self, nbytes: int, pixels: int) -> None:
        """A frame of so many pixels had `nbytes`."""
        if nbytes <= 0 or pixels <= 0:
            return
        earlier = self._weight * _FRAMES_KEPT
        self._weight = earlier + 1.0
        off_pixels = log(pixels) - self._mean_pixels if earlier else 0.0
        if not earlier:
            self._mean_pixels, self._mean_bytes = log(pixels), log(nbytes)
        off_bytes = log(nbytes) - self._mean_bytes
        share = earlier / self._weight
        self._spread = _FRAMES_KEPT * self._spread + share * off_pixels * off_pixels
        self._cross = _FRAMES_KEPT * self._cross + share * off_pixels * off_bytes
        self._mean_pixels += off_pixels / self._weight
        self._mean_bytes += off_bytes / self._weight

    def of(self, pixels: int) -> float:
        """Bytes expected of a frame of so many pixels."""
        if pixels <= 0:
            return 0.0
        power = (self._cross + _PRIOR * _POWER) / (self._spread + _PRIOR)
        power = min(max(power, _LEAST_POWER), _MOST_POWER)
        return exp(self._mean_bytes + power * (log(pixels) - self._mean_pixels))
