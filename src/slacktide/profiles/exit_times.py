"""`ExitTimes`: predictions for a model with early exits at ramps.

A batch then has two times. Its *lane* is busy until it ends (`expected` and `p99`), but a request
may have its *answer* sooner, from a ramp (`quantile` and `on_time`).

- The wrapped predictions are for whole passes through the model with its ramps. They learn from
  batches that run to the end.
- With probability p_i, an answer comes from ramp i, after the share s_i of a whole pass; otherwise
  it comes at the end: P(answer by b) = Σ p_i · P(whole ≤ b / s_i). The s_i are learnt from the
  times of the ramps' answers, the p_i from the rows that they answered; old batches count less.
- If answered rows leave, a batch takes c · Σ p_i · s_i of a whole pass (the end has s = 1), with a
  learnt factor c: a batch of half the rows takes more than half the time. A policy in mode `auto`
  counts as one in mode `shrink`, since lane time matters when requests wait for lanes. The share
  `feedback` of batches runs whole, so the p99 is that of a whole pass.

If every request that only an early answer could serve were refused, neither these predictions nor
the search for thresholds would learn anything more. So each refusal on an idle lane raises the
chance of the first ramp until a request is admitted as a try. In this way nine in ten of the
requests that have almost no chance are admitted, but only on lanes that would otherwise be idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slacktide.domain import Batch, ExitMode, ExitPolicy, ExitReport, Leaving, Request
from slacktide.domain.read_only import read_only
from slacktide.profiles.batch_times import BatchTimes
from slacktide.profiles.shape_classes import Classes
from slacktide.profiles.time_distribution import TimeDistribution, inverse

ROWS = 128
"""Number of rows over which learning from exits fades to 1/e."""
NEW_ROWS, TUNED_ROWS = 8, 32
"""Weight of earlier knowledge, in rows, when ramps become active, and when they are tuned."""
SHARE_GAIN, FACTOR_GAIN = 0.05, 0.02
INITIAL_CHANCE = 0.5
"""Initial chance of a ramp that becomes active."""
REFUSAL_GAIN, MOST_RAISED_CHANCE = 1.0 / 64.0, 0.5
"""Increase of the first ramp's chance by a refusal on an idle lane, and its limit."""
NOTICEABLE_CHANCE, NOTICEABLE_SHARE, NOTICEABLE_LANE = 0.05, 0.02, 0.05
LEAST_SHARE = 1e-3
LEAST_FACTOR, MOST_FACTOR = 0.5, 3.0


@read_only
class ExitMix:
    """When answers come and when the lane is free again, as shares of a whole pass."""

    parts: tuple[tuple[float, float], ...]
    """(chance, share of a whole pass) of each active ramp and of the end."""
    lane: float
    """Mean share of a whole pass for which a batch occupies its lane."""

    @property
    def soonest(self) -> float:
        """Share of a whole pass after which the first answers come."""
        return min(share for _, share in self.parts)


class ExitTime:
    """The time of a batch whose members may leave early, in seconds."""

    __slots__ = ("_mix", "expected", "p99", "whole")

    def __init__(self, whole: TimeDistribution, mix: ExitMix) -> None:
        self.whole = whole
        """The time of a whole pass."""
        self._mix = mix
        self.expected = mix.lane * whole.expected
        """Typical lane time."""
        self.p99 = whole.p99
        """99th percentile of the lane time."""

    def quantile(self, level: float) -> float:
        """Seconds within which a share `level` of members has an answer."""
        high = self.whole.quantile(level)
        return inverse(self.on_time, level, self._mix.soonest * high, high)

    def on_time(self, budget: float) -> float:
        """P(a member has its answer within `budget`)."""
        chance = 0.0
        for weight, share in self._mix.parts:
            chance += weight * self.whole.on_time(budget / share)
        return chance


class _Ramp:
    """The learnt statistics of one ramp."""

    __slots__ = ("batches", "chance", "share")

    def __init__(self) -> None:
        self.chance = 0.0
        """Share of the rows that it answers."""
        self.share = 1.0
        """Share of a whole pass until its answers."""
        self.batches = 0
        """Number of batches that `share` was learnt from; 0: unknown."""


class ExitTimes(BatchTimes):
    """Batch times of a pool whose requests may leave early by a policy."""

    learns = True

    def __init__(self, inner: BatchTimes) -> None:
        self.inner = inner
        """Predictions for whole passes."""
        self._policy: ExitPolicy | None = None
        self._ramps: dict[int, _Ramp] = {}
        """The ramps of the policy in force by position, front to end."""
        self._rows = 0.0
        """Number of rows that the chances were learnt from."""
        self._factor = 1.0
        self._mix: ExitMix | None = None
        """The published mix; None: no row leaves early."""
        self._mixes = 0
        self._answers: dict[tuple[int, int], ExitTime] = {}

    # BatchTimes

    @property
    def revision(self) -> int:
        return self.inner.revision + self._mixes

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        whole, mix = self.inner.of(rows, cores, members), self._mix
        if mix is None:
            return whole
        answer = self._answers.get((rows, cores))
        if answer is None or answer.whole is not whole:
            answer = self._answers[rows, cores] = ExitTime(whole, mix)
        return answer

    def classes(self, cores: int) -> Classes | None:
        """The classes for whole passes; with classes, no early answers are promised."""
        return self.inner.classes(cores)

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Learn from a whole pass."""
        self.inner.observe(seconds, members, rows, cores)

    def discount(self, request: Request | None = None) -> None:
        first = next((ramp for ramp in self._ramps.values() if ramp.batches), None)
        if first is not None and first.chance < MOST_RAISED_CHANCE:
            first.chance += REFUSAL_GAIN
            self._publish()
        else:
            self.inner.discount(request)

    def settle(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        self.inner.settle(seconds, members, rows, cores)

    # Early exits

    @property
    def soonest(self) -> float:
        """Share of a request's own lane time after which its answer may come; 1: not before the
        end."""
        mix = self._mix
        return 1.0 if mix is None else min(1.0, mix.soonest / mix.lane)

    def follow(self, policy: ExitPolicy | None) -> None:
        """Predict early exits by this policy from now on; None: no early exits."""
        before, self._policy = self._policy, policy
        ramps = () if policy is None else policy.ramps
        thresholds = () if policy is None else policy.thresholds
        ramps_before, wakes = self._ramps, before is None or not any(before.thresholds)
        self._ramps = {position: ramps_before.get(position) or _Ramp() for position in ramps}
        for position, cost in zip(ramps, () if policy is None else policy.costs, strict=False):
            if not self._ramps[position].batches:
                self._ramps[position].share, self._ramps[position].batches = cost, 1
        self._rows = min(self._rows, NEW_ROWS if wakes else TUNED_ROWS)
        if wakes and any(thresholds):
            first = next(p for p, threshold in zip(ramps, thresholds, strict=True) if threshold)
            self._ramps[first].chance = max(self._ramps[first].chance, INITIAL_CHANCE)
        self._publish(at_once=True)

    def whole(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        return self.inner.of(rows, cores, members)

    def saw(
        self, batch: Batch, report: ExitReport | None, seconds: float | None, cores: int
    ) -> None:
        members, rows = batch.members, batch.rows
        whole, shrinks = self.inner.of(rows, cores, members).expected, False
        if report is not None:
            shrinks = batch.leaving is Leaving.SHRINK and max(report.left, default=-1) >= 0
            self._learn_exits(report, whole, shrinks)
        if seconds is not None and batch.leaving is Leaving.SHRINK:
            factor = seconds / (whole * self._shrunk())
            factor = min(max(factor, LEAST_FACTOR), MOST_FACTOR)
            self._factor += FACTOR_GAIN * (factor - self._factor)
        if seconds is not None and not shrinks:  # it was a whole pass
            self.observe(seconds, members, rows, cores)
        self._publish()

    def _learn_exits(self, report: ExitReport, whole: float, shrinks: bool) -> None:
        ramps = [self._ramps.get(position) for position in report.ramps]
        rows = len(report.left)
        if not rows:
            return
        fades = 1.0 - math.exp(-rows / ROWS)
        gain = max(rows / (self._rows + rows), fades)
        self._rows = min(self._rows + rows, ROWS)
        for index, ramp in enumerate(ramps):
            if ramp is None:  # the worker did not yet apply the policy in force
                continue
            ramp.chance += gain * (report.left.count(index) / rows - ramp.chance)
            if index < len(report.stage_s) and (not shrinks or not ramp.batches):
                share = min(max(report.stage_s[index] / whole, LEAST_SHARE), 1.0)
                ramp.batches += 1
                ramp.share += max(1.0 / ramp.batches, SHARE_GAIN) * (share - ramp.share)

    def _shrunk(self) -> float:
        """Share of a whole pass that a batch needs if answered rows leave."""
        saved = [r.chance * (1.0 - r.share) for r in self._ramps.values() if r.batches]
        return max(1.0 - sum(saved), LEAST_SHARE)

    def _publish(self, *, at_once: bool = False) -> None:
        """Publish the learnt statistics if they change predictions noticeably."""
        mix, policy = None, self._policy
        measured = [r for r in self._ramps.values() if r.batches and r.chance > 0.0]
        if policy is not None and measured:
            early = sum([ramp.chance for ramp in measured])
            scale = 1.0 if early <= 1.0 else 1.0 / early
            parts = [(scale * ramp.chance, ramp.share) for ramp in measured]
            lane = 1.0
            if policy.mode is not ExitMode.RELEASE:
                shrunk = min(1.0, self._factor * self._shrunk())
                lane = policy.feedback + (1.0 - policy.feedback) * shrunk
            mix = ExitMix((*parts, (max(0.0, 1.0 - early), 1.0)), lane)
        if at_once or _differ(mix, self._mix):
            self._mix = mix
            self._mixes += 1
            self._answers.clear()


def _differ(after: ExitMix | None, before: ExitMix | None) -> bool:
    """Whether answers or lane times differ noticeably."""
    if after is None or before is None or len(after.parts) != len(before.parts):
        return after is not before
    return abs(after.lane - before.lane) > NOTICEABLE_LANE * before.lane or any(
        abs(a[0] - b[0]) > NOTICEABLE_CHANCE or abs(a[1] - b[1]) > NOTICEABLE_SHARE
        for a, b in zip(after.parts, before.parts, strict=True)
    )
