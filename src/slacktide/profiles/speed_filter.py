"""`SpeedFilter`: how the machine differs from its profile, if requests differ in length.

It estimates two log factors: `speed` on every batch time (clocks throttle, neighbours arrive), and
`fixed` on c0 alone. Lengths are computed from c0 and the times of requests that ran alone, so lone
runs do not reveal a wrong c0. Batches of n do: their time, predicted from the same lone runs, is
n · alone − (n − 1) · c0. Each unit of `fixed` changes the logarithm of that time by

    leverage = −(n − 1) · c0 / time of the batch

So one filter estimates both (Kalman 1960, two states, random walks). With only one factor it would
be unstable: after a batch faster than predicted, the machine seems faster, so the next lone run
seems longer and the next batch faster still. Whether lengths or the machine have changed cannot be
known and does not matter, so `speed` slowly returns to 0, and the learnt lengths absorb it.

The error of a prediction follows from its level u = P(time ≤ observed). If the distribution is
right, u is ½ on average whatever its shape, which is not true of the mean log error. For a time
outside the 1st to 99th percentile the log distance is added, up to `CLIP`, so hiccups count little.
"""

from __future__ import annotations

import math

from slacktide.profiles.fixed_times import LongestMemberTime

CLIP = 0.2
BOUND_SPEED = math.log(10.0)
BOUND_FIXED = math.log(3.0)
RUN = 8
"""Number of successive errors with the same sign after which the machine counts as changed."""
LEAST_SPREAD = 0.05
_SPEED_VARIANCE = 0.05**2
_FIXED_VARIANCE = 0.2**2
_SPEED_WANDER = 0.003**2
_SPEED_JUMP = 0.03**2
_FIXED_WANDER = 0.0005**2
_RETURN = 1.0 - 1.0 / 5000.0
"""Decay of `speed` per batch: after 3,500 batches, the learnt lengths have absorbed half of it."""


class SpeedFilter:
    """The two log factors, learnt from one batch at a time. Constant time and memory."""

    __slots__ = ("_cross", "_fixed_var", "_run", "_speed_var", "fixed", "speed")

    def __init__(self, speed: float = 0.0, fixed: float = 0.0) -> None:
        self.speed = speed
        self.fixed = fixed
        self._speed_var = _SPEED_VARIANCE
        self._fixed_var = _FIXED_VARIANCE
        self._cross = 0.0
        self._run = 0

    def observe(self, seconds: float, forecast: LongestMemberTime, leverage: float) -> None:
        """Learn from a batch that took `seconds` and was predicted as `forecast`."""
        spread = forecast.spread
        error = surprise(seconds, forecast)
        if error > 0.0:
            self._run = max(self._run, 0) + 1
        else:
            self._run = min(self._run, 0) - 1
        self._speed_var += _SPEED_JUMP if abs(self._run) >= RUN else _SPEED_WANDER
        self._fixed_var += _FIXED_WANDER
        speed = self._speed_var + leverage * self._cross
        fixed = self._cross + leverage * self._fixed_var
        noise = max(spread, LEAST_SPREAD)
        total = speed + leverage * fixed + noise * noise
        gain_speed, gain_fixed = speed / total, fixed / total
        speed_now = _RETURN * self.speed + gain_speed * error
        self.speed = min(max(speed_now, -BOUND_SPEED), BOUND_SPEED)
        self.fixed = min(max(self.fixed + gain_fixed * error, -BOUND_FIXED), BOUND_FIXED)
        self._speed_var -= gain_speed * speed
        self._cross -= gain_speed * fixed
        self._fixed_var -= gain_fixed * fixed


def surprise(seconds: float, forecast: LongestMemberTime) -> float:
    """Signed log error of a forecast; 0 on average if its distribution is right."""
    error = (2.0 * forecast.on_time(seconds) - 1.0) * forecast.spread
    if seconds > forecast.p99:
        error += min(math.log(seconds / forecast.p99), CLIP)
    elif seconds < forecast.p01:
        error -= min(math.log(forecast.p01 / seconds), CLIP)
    return error
