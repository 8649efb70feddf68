"""`ClassedTimes`: a profile that learns which requests are long.

Until requests differ it behaves exactly like a `CorrectedTimes`. Requests with an application or a
work hint are grouped by it. Lone runs show their lengths (`RunTimes`); once lengths differ
noticeably, `classes` returns a snapshot and all predictions follow from it (`FixedTimes`). Larger
batches then teach how the machine differs from the profile (`SpeedFilter`), since the length of
their longest member is not observed.

Predictions stay fixed between revisions, as in `CorrectedTimes`: after a number of lone runs the
learnt distributions are compared with the published ones, and published if they differ.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from slacktide.domain import Request
from slacktide.profiles import reading
from slacktide.profiles.batch_times import BatchTimes
from slacktide.profiles.corrected_times import (
    DISCOUNT,
    NOTICEABLE,
    PATIENCE,
    CorrectedTimes,
    mean_error,
)
from slacktide.profiles.distribution import Floats, expected_max, quantile, weighted_sum
from slacktide.profiles.fixed_times import FixedTimes
from slacktide.profiles.latency_fit import fit_latency
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.length_classes import KeyLengths, classes_of
from slacktide.profiles.length_window import NEWEST
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.run_classes import BatchLatency, Key, RunClasses, same_classes
from slacktide.profiles.run_times import RunTimes
from slacktide.profiles.speed_filter import BOUND_FIXED, BOUND_SPEED, SpeedFilter
from slacktide.profiles.time_distribution import TimeDistribution

DIFFERENT = 1.15
"""Classes are used if the longest key alone takes this many times as long as the shortest alone."""
WIDE = 2.0
"""Classes are also used if the 95th percentile of the time alone is this many times the 5th."""
LOOK_EVERY = 50
"""Lone runs between two comparisons; a fifth of this while there are few samples."""
_SPEED_SHOWS = 0.02
"""Twice the value of `CorrectedTimes`, since each revision invalidates tables by class."""
_MEAN_SHOWS = 0.02
_CDF_SHOWS = 0.05
_SHARE_SHOWS = 0.05
_FIXED_SHOWS = 0.03
SCHEMA = 1
_KEYS = ("schema", "speed", "fixed", "lengths")


class ClassedTimes(BatchTimes):
    """Raises ProfileError like `CorrectedTimes`. `expected` is the median while all requests are
    treated alike, and the mean once there are classes."""

    learns = True

    def __init__(
        self, table: LatencyTable, *, latency: Callable[[int], BatchLatency] | None = None
    ) -> None:
        """`latency` returns c0 and c1 for a number of cores; None: fit them to the table."""
        self.point = CorrectedTimes(table)
        """Predictions that treat all requests alike; not updated while there are classes."""
        self.table = table
        """The profile as measured."""
        self._fitted = latency or (lambda cores: fit_latency(table, cores).latency)
        self._latencies: dict[int, BatchLatency] = {}
        self._lengths = RunTimes()
        self._filter = SpeedFilter()
        self._tagged = False
        self._fresh = 0
        self._classes: RunClasses | None = None
        self._known_keys: frozenset[Key] = frozenset()
        self._by_cores: dict[int, FixedTimes] = {}
        self._speed = 0.0
        self._fixed = 0.0
        self._since = 0
        self._error: float | None = None
        self.batches = 0
        """Number of batches learnt from."""
        self._revision = 0

    # BatchTimes

    @property
    def revision(self) -> int:
        """Rises when predictions have changed noticeably."""
        return self._revision + self.point.revision

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        """The time of a batch of `rows` rows with these members, or of any requests."""
        if self._classes is None:
            return self.point.of(rows, cores)
        return self._times(cores).of(rows, cores, members)

    def classes(self, cores: int) -> RunClasses | None:
        """The classes of requests by work; None while all are treated alike."""
        return None if self._classes is None else self._times(cores).classes(cores)

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Learn from one finished batch; times that are not positive and finite are ignored."""
        classes = self._classes
        self.batches += 1
        if classes is None:
            self.point.observe(seconds, members, rows, cores)
            if not (self._tagged or _tagged(members)):
                return
            self._tagged = True
        if not (members and 0.0 < seconds < math.inf):
            return
        lengths = self._lengths
        edges = lengths.edges
        keys = lengths.arrived(members)
        if lengths.edges is not edges:
            self._look()
        elif classes is not None:
            self._judge(seconds, members, keys, rows, cores)
        if len(members) == 1 or _alike(members):
            self.observe_alone(members[0], seconds, rows, cores)

    def observe_alone(self, request: Request, seconds: float, rows: int, cores: int) -> None:
        """Learn that `rows` rows of `request`, and of equally long ones if any, took `seconds`."""
        latency = self.latency(cores)
        per_length = latency.c1 * latency.paid(rows)
        seconds *= math.exp(-self._filter.speed)  # at the machine's speed when it was profiled
        replaced = self._lengths.learn(request, seconds / per_length, latency.c0 / per_length)
        self._fresh += 1
        has_few_samples = self._lengths.samples < 4 * LOOK_EVERY
        if replaced > 1 or self._fresh >= (LOOK_EVERY // 5 if has_few_samples else LOOK_EVERY):
            self._look()

    def discount(self, request: Request | None = None) -> None:
        """Trust predictions a little less: a request was refused because of them, and no run can
        prove them wrong."""
        if self._classes is None:
            self.point.discount()
            return
        self._filter.speed = max(self._filter.speed - DISCOUNT, -BOUND_SPEED)
        if abs(self._filter.speed - self._speed) > 2.0 * NOTICEABLE:
            self._publish(self._classes)

    def settle(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Predict `seconds` for batches like this one, and scale all others by the same factor."""
        if self._classes is None:
            self.point.settle(seconds, members, rows, cores)
            return
        moved = math.log(seconds / self._times(cores).of(rows, cores, members).expected)
        self._filter.speed = max(self._filter.speed + moved, -BOUND_SPEED)
        self._publish(self._classes)

    # For people, logs and metrics

    @property
    def prediction_error(self) -> float | None:
        """Exponential mean of |observed − expected| / expected; None before the first batch."""
        return self.point.prediction_error if self._error is None else self._error

    @property
    def drift(self) -> float:
        """Observed ÷ profiled: 1.3 means that everything takes 30 % longer than profiled."""
        return self.point.drift if self._classes is None else math.exp(self._filter.speed)

    @property
    def drifted(self) -> bool:
        """Whether `drift` has been off by more than 25 % for long; False if there are classes."""
        return self._classes is None and self.point.drifted

    @property
    def unknown_keys(self) -> int:
        """Number of keys with too few samples, which are assumed to take the model's p99."""
        return len(self._lengths.unknown_keys)

    def wants(self, request: Request) -> bool:
        """Whether a lone run of `request` would teach something: few requests like it ran alone
        lately."""
        return _tagged((request,)) and self._lengths.fresh(self._lengths.key_of(request)) < NEWEST

    def latency(self, cores: int) -> BatchLatency:
        """c0 and c1 of the profile on `cores` cores."""
        latency = self._latencies.get(cores)
        if latency is None:
            latency = self._latencies[cores] = self._fitted(cores)
        return latency

    # Learning beforehand

    def train(self, lengths: Mapping[str, ArrayLike]) -> None:
        """Learn lengths that were measured elsewhere, by application. Only the last samples count
        (`LengthWindow`); each sample also counts as an arrival. Raises ProfileError for lengths
        that are negative or not finite."""
        for application, values in lengths.items():
            samples = np.asarray(values, dtype=np.float64)
            if not (np.isfinite(samples).all() and (samples >= 0.0).all()):
                raise ProfileError(f"{application!r}: expected lengths, finite and not negative")
            request = Request(0, "", 0.0, 0.0, application=application)
            for length in samples.tolist():
                self._lengths.arrived((request,))
                self._lengths.learn(request, length, 0.0)
        self._tagged = True
        self._look()

    def export(self) -> dict[str, object]:
        """The learnt lengths, JSON-ready (docs/internals/profile-files.md)."""
        return {
            "schema": SCHEMA,
            "speed": self._filter.speed,
            "fixed": self._filter.fixed,
            "lengths": self._lengths.to_dict(),
        }

    def load(self, data: object) -> None:
        """Continue from an earlier `export`. Raises ProfileError, naming the field."""
        fields = reading.mapping(data, "learnt", _KEYS)
        reading.schema(fields["schema"], SCHEMA, "learnt.schema")
        speed = reading.number(fields["speed"], "learnt.speed")
        fixed = reading.number(fields["fixed"], "learnt.fixed")
        for name, value, bound in (("speed", speed, BOUND_SPEED), ("fixed", fixed, BOUND_FIXED)):
            if abs(value) > bound:
                raise ProfileError(f"learnt.{name}: expected at most ±{bound:.3f}, got {value}")
        self._lengths = RunTimes.from_dict(fields["lengths"])
        self._filter = SpeedFilter(speed, fixed)
        self._tagged = self._lengths.tagged
        self._look()

    # Publishing

    def _times(self, cores: int) -> FixedTimes:
        """The published predictions. Requires classes."""
        times = self._by_cores.get(cores)
        if times is None:
            assert self._classes is not None
            base, speed = self.latency(cores), math.exp(self._speed)
            latency = BatchLatency(
                base.c0 * speed * math.exp(self._fixed), base.c1 * speed, base.sizes
            )
            times = FixedTimes(dataclasses.replace(self._classes, latency=latency))
            self._by_cores[cores] = times
        return times

    def _judge(
        self, seconds: float, members: Sequence[Request], keys: Sequence[Key], rows: int, cores: int
    ) -> None:
        """Learn from the difference between the time of a batch and its prediction."""
        times = self._times(cores)
        forecast = times.of(rows, cores, members)
        self._error = mean_error(self._error, seconds, forecast.expected)
        if not self._known_keys.issuperset(keys):
            return  # a failed guess says nothing about the machine
        fixed = times.classes(cores).latency.c0
        learnt = self._filter
        learnt.observe(seconds, forecast, (1 - len(members)) * fixed / forecast.expected)
        self._since += 1
        noticeable = _SPEED_SHOWS * (1.0 + PATIENCE / self._since)
        if abs(learnt.fixed - self._fixed) > _FIXED_SHOWS + noticeable:
            self._look(always=True)
        elif abs(learnt.speed - self._speed) > noticeable:
            self._publish(self._classes)

    def _look(self, *, always: bool = False) -> None:
        """Sort the learnt lengths into classes; publish these if noticeably new, or `always`."""
        self._fresh = 0
        before, classes = self._classes, None
        key_lengths, step = self._lengths.distributions(math.exp(self._filter.fixed))
        if key_lengths:
            classes = classes_of(key_lengths, self.latency(1), step, hint_edges=self._lengths.edges)
            if not self._differ(key_lengths, step):
                classes = None
        if classes is None or before is None:
            if classes is not before:
                self._publish(classes)
        elif always or _shows(before, classes):
            self._publish(classes)

    def _differ(self, lengths: Sequence[KeyLengths], step: float) -> bool:
        """Whether known keys differ enough for classes; the limits are lower once there are any."""
        groups = [group for group in lengths if group.key in self._lengths.known_keys]
        base = self.latency(1)
        latency = BatchLatency(base.c0 * math.exp(self._filter.fixed), base.c1)
        ease = 1.0 if self._classes is None else 0.5
        alone = [latency.seconds(1, expected_max(group.cdf, step)) for group in groups]
        if max(alone) > min(alone) * (1.0 + ease * (DIFFERENT - 1.0)):
            return True
        shares = np.array([max(group.share, 1e-6) for group in groups])
        mix: Floats = weighted_sum(shares / shares.sum(), np.stack([group.cdf for group in groups]))
        low, high = (latency.seconds(1, quantile(mix, level, step)) for level in (0.05, 0.95))
        return high > low * (1.0 + ease * (WIDE - 1.0))

    def _publish(self, classes: RunClasses | None) -> None:
        if classes is None:
            self._error = None
        self._classes = classes
        self._known_keys = self._lengths.known_keys
        self._speed, self._fixed = self._filter.speed, self._filter.fixed
        self._since = 0
        self._by_cores.clear()
        self._revision += 1


def _tagged(members: Sequence[Request]) -> bool:
    """Whether any member has an application or a work hint."""
    return any(member.application or member.work_hint is not None for member in members)


def _alike(members: Sequence[Request]) -> bool:
    """Whether all members have the same hint: then all are equally long, without padding."""
    first = members[0]
    return first.work_hint is not None and all(
        member.work_hint == first.work_hint and member.application == first.application
        for member in members
    )


def _shows(before: RunClasses, after: RunClasses) -> bool:
    """Whether a policy would decide differently by the newer classes."""
    if before.step != after.step or not same_classes(before, after):
        return True
    means = zip(before.means, after.means, strict=True)
    shares = zip(before.shares, after.shares, strict=True)
    return (
        any(abs(a - b) > _MEAN_SHOWS * a for a, b in means)
        or any(abs(a - b) > _SHARE_SHOWS for a, b in shares)
        or float(np.abs(before.cdfs - after.cdfs).max()) > _CDF_SHOWS
    )
