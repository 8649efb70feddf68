"""`SpeedFilter`: how the machine differs from the profiled one, if requests differ in length.

Two figures: `speed`, a log factor on every batch time (clocks throttle, neighbours arrive), and
`fixed`, a log factor on c0 alone. Lengths are computed with c0 from the times of requests that ran
alone, so a wrong c0 goes unnoticed there and shows in batches of n: their time follows from the
same lone runs as n · alone − (n − 1) · c0, which moves by

    leverage = −(n − 1) · c0 / time of the batch

for each unit of `fixed`. Hence one filter for both (Kalman 1960, two states, random walks). With
one figure alone it would be unstable: a batch faster than predicted makes the machine seem faster,
the next lone run therefore longer, and batches faster still. Whether lengths or the machine have
changed cannot be known and does not matter, so `speed` slowly returns to 0, and lengths follow.

The error of a prediction follows from its level u = P(time ≤ observed), which is ½ on average if
the distribution is right, whatever its shape, unlike the mean of logarithms. The distance of a time
from the distribution counts up to `CLIP`, so one hiccup has little effect.
"""

from __future__ import annotations

import math

from slacktide.profiles.fixed_times import LongestMemberTime

CLIP = 0.2
BOUND_SPEED = math.log(10.0)
BOUND_FIXED = math.log(3.0)
RUN = 8
"""Errors of one sign in a row after which the machine counts as changed."""
LEAST_SPREAD = 0.05
_SPEED_VARIANCE = 0.05**2
_FIXED_VARIANCE = 0.2**2
_SPEED_WANDER = 0.003**2
_SPEED_JUMP = 0.03**2
_FIXED_WANDER = 0.0005**2
_RETURN = 1.0 - 1.0 / 5000.0
"""After 3,500 batches, half of `speed` has turned into lengths."""


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
    """Signed log error of a forecast: 0 on average if the forecast's distribution is right."""
    error = (2.0 * forecast.on_time(seconds) - 1.0) * forecast.spread
    if seconds > forecast.p99:
        error += min(math.log(seconds / forecast.p99), CLIP)
    elif seconds < forecast.p01:
        error -= min(math.log(forecast.p01 / seconds), CLIP)
    return error
