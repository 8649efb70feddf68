"""`CorrectedTimes`: a profile that learns from the batches that run.

It shifts a `LatencyTable` by a `Correction`, and has a `TimeDistribution` for each (rows, cores).

Learning and answering are separate. Every observation changes the correction; the *published*
predictions follow only when one of them would change noticeably, and then `revision` rises. In
between, predictions are constant, so callers may build tables from them, and this class may cache
its answers: on a hit `of` is one dictionary look-up.

When the first batch runs on a core count that was not measured, the table gets a column for this
count. The column's times are predicted at first, and learnt from then on. So predictions for
further core counts, which derive from all corrected columns (`Surface`), improve as well.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from operator import mul

from slacktide.domain import Request
from slacktide.profiles import reading
from slacktide.profiles.batch_times import BatchTimes
from slacktide.profiles.correction import LOWEST_SPREAD, Correction, Place
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.surface import Surface, span
from slacktide.profiles.time_distribution import SplitLogLogistic

NOTICEABLE = 0.01
"""Relative change of a prediction that is worth a new revision in the long run."""
PATIENCE = 12.0
"""n batches after a revision, the next revision requires a change of NOTICEABLE · (1 + PATIENCE /
n): 13 % after one batch, 4 % after four, 2 % after twelve. A revision costs about 0.2 ms to rebuild
tables; the batches of a tiny model are shorter than that, and their times jitter."""
DISCOUNT = 0.002
"""Share by which each refusal on an idle lane shortens predictions. Predictions of twice the true
time are right after 350 refusals. If predictions were right before, one refusal in hundreds leads
to a try."""
DRIFT_RATIO = 1.25
DRIFT_BATCHES = 50
_DRIFT = math.log(DRIFT_RATIO)
_NOTICEABLE_LOWER = 0.05
"""The spread below the median is a rough figure, published in steps of 5 % of itself."""
_LOWER_SHARE = 0.25
"""First guess at the ratio of the spread below the median to the spread above it (of logs)."""
_LEAST_RATIO = math.exp(LOWEST_SPREAD)
_ERROR_GAIN = 0.05
_WORST_ERROR = 10.0
_MOST_KEPT = 4096
"""Limit on answers cached between revisions; far more than the rows × cores that occur."""


class CorrectedTimes(BatchTimes):
    """Raises ProfileError for rows or cores below 1 and for levels outside 0 to 1."""

    learns = True

    def __init__(self, table: LatencyTable, *, lower: float | None = None) -> None:
        """`lower`: first guess at the spread below the median (log); None: derived from the spread
        above it."""
        self.table = table
        """The profile as measured."""
        self._cores = list(table.cores)
        self._p50 = [list(row) for row in table.p50_s]
        self._spreads = [
            [_spread(p50, p99) for p50, p99 in zip(*row, strict=True)]
            for row in zip(table.p50_s, table.p99_s, strict=True)
        ]
        self._spread = statistics.median(spread for row in self._spreads for spread in row)
        self._correction = Correction(
            len(table.batches),
            len(table.cores),
            upper=self._spread,
            lower=max(_LOWER_SHARE * self._spread, LOWEST_SPREAD) if lower is None else lower,
        )
        self._profiled: dict[tuple[int, int], tuple[Place, float, float]] = {}
        self._answers: dict[tuple[int, int], SplitLogLogistic] = {}
        self._surfaces: tuple[Surface, Surface] | None = None
        self._revision = -1
        self.prediction_error: float | None = None
        """Exponential mean of |observed − expected| / expected; None before the first batch.

        Each batch is compared with the prediction in force before it, and counts at most 10.
        """
        self._beyond = 0
        self._publish()

    # BatchTimes

    @property
    def revision(self) -> int:
        """Rises when a prediction has changed noticeably: by 13 %, or by 1 % after many batches."""
        return self._revision

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> SplitLogLogistic:
        """The time of a batch of `rows` rows; its `members` do not matter."""
        answer = self._answers.get((rows, cores))
        return answer if answer is not None else self._answer(rows, cores)

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Learn from one finished batch. Times that are not positive and finite are ignored, such
        as those of a clock that did not advance."""
        if not 0.0 < seconds < math.inf:
            return
        predicted = self.of(rows, cores).expected
        self.prediction_error = mean_error(self.prediction_error, seconds, predicted)
        place, log_seconds, spread = self._profile(rows, cores)
        self._correction.observe(math.log(seconds) - log_seconds, place, spread)
        drifting = abs(self._correction.overall) > _DRIFT
        self._beyond = self._beyond + 1 if drifting else 0
        if self._moved(place):
            self._publish()

    def discount(self, request: Request | None = None) -> None:
        """Trust predictions a little less: a request was refused because of them, and no run can
        prove them wrong. Otherwise a slow moment could have every tight deadline refused for ever.
        """
        self._correction.discount(DISCOUNT)
        if abs(self._correction.overall - self._overall) > 2.0 * NOTICEABLE:
            self._publish()

    def settle(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Predict `seconds` for batches of `rows` rows, and scale all others by the same factor."""
        _, log_seconds, _ = self._profile(rows, cores)
        self._correction.settle(math.log(seconds) - log_seconds)
        self._publish()

    def shift(self, by: float) -> None:
        """Shift all predictions by the log factor `by`, and publish them; 0 does nothing."""
        if by != 0.0:
            self._correction.discount(-by)
            self._publish()

    # For people, logs and metrics

    @property
    def overall(self) -> float:
        """Log of `drift`."""
        return self._correction.overall

    @property
    def batches(self) -> int:
        """Number of batches learnt from."""
        return self._correction.batches

    @property
    def drift(self) -> float:
        """Observed ÷ profiled over all sizes: 1.3 means that everything takes 30 % longer."""
        return math.exp(self._correction.overall)

    @property
    def drifted(self) -> bool:
        """Whether `drift` has been off by more than 25 % for 50 batches in a row."""
        return self._beyond >= DRIFT_BATCHES

    def export(self) -> dict[str, object]:
        """The learnt correction of this machine, JSON-ready; `cores` names the columns."""
        return {"cores": list(self._cores), **self._correction.to_dict()}

    def load(self, data: object) -> None:
        """Continue from an `export` for the same table. Raises ProfileError."""
        if not isinstance(data, dict):
            raise ProfileError("correction: expected an object")
        learnt = dict(data)
        learnt.setdefault("base", 0.0)  # exports from before there were trials
        cores = reading.whole_numbers(learnt.pop("cores", None), "correction.cores")
        if min(cores, default=0) < 1 or not set(cores) >= set(self._cores):
            raise ProfileError(f"correction.cores: expected at least {self._cores}, got {cores}")
        for count in cores:
            if count not in self._cores:
                self._open(count)
        self._correction.restore(learnt)
        self._publish()

    # Publishing

    def _answer(self, rows: int, cores: int) -> SplitLogLogistic:
        if self._surfaces is None:
            self._surfaces = self._corrected()
        median, high = self._surfaces
        p50 = median.at(rows, cores)
        # Beyond the measured points, p50 and p99 may meet.
        p99 = max(high.at(rows, cores), p50 * _LEAST_RATIO)
        answer = SplitLogLogistic(p50, p99, self._lower, self._spread * self._upper)
        if len(self._answers) >= _MOST_KEPT:
            self._answers.clear()
        self._answers[rows, cores] = answer
        return answer

    def _profile(self, rows: int, cores: int) -> tuple[Place, float, float]:
        """(place, ln seconds, ln(p99 / p50)) in the profile as measured."""
        key = (rows, cores)
        profiled = self._profiled.get(key)
        if profiled is None:
            table = self.table
            p50 = table.expected(rows, cores)
            if cores not in self._cores:
                self._open(cores)
            place = Place(*span(table.batches, rows), self._cores.index(cores))
            profiled = (place, math.log(p50), _spread(p50, table.p99(rows, cores)))
            if len(self._profiled) >= _MOST_KEPT:
                self._profiled.clear()
            self._profiled[key] = profiled
        return profiled

    def _open(self, cores: int) -> None:
        """Add a column for a core count. Predictions for it stay as they are."""
        column = bisect_left(self._cores, cores)
        sizes = self.table.batches
        guessed = [self.table.expected(size, cores) for size in sizes]
        shifts = [
            math.log(self.of(size, cores).expected / seconds) - self._overall
            for size, seconds in zip(sizes, guessed, strict=True)
        ]
        self._correction.insert(column, shifts)
        for row, size, seconds in zip(range(len(sizes)), sizes, guessed, strict=True):
            self._p50[row].insert(column, seconds)
            self._spreads[row].insert(column, _spread(seconds, self.table.p99(size, cores)))
            self._shifts[row].insert(column, self._overall + shifts[row])
        self._cores.insert(column, cores)
        self._profiled.clear()  # columns have moved

    def _moved(self, place: Place) -> bool:
        """Whether the last observation, at `place`, is worth publishing. Compares the common shift
        and the cells that changed now; other cells were compared when they last changed."""
        correction, column = self._correction, place.column
        noticeable = NOTICEABLE * (1.0 + PATIENCE / (correction.batches - self._published_at))
        return (
            abs(correction.overall - self._overall) > noticeable
            or abs(correction.shift(place.low, column) - self._shifts[place.low][column])
            > noticeable
            or abs(correction.shift(place.high, column) - self._shifts[place.high][column])
            > noticeable
            or abs(correction.upper - self._upper) * self._spread > noticeable
            or abs(correction.lower - self._lower) > noticeable + _NOTICEABLE_LOWER * self._lower
        )

    def _publish(self) -> None:
        self._overall = self._correction.overall
        self._shifts = self._correction.shifts()
        self._upper = self._correction.upper
        self._lower = self._correction.lower
        self._published_at = self._correction.batches
        self._surfaces = None
        self._answers.clear()
        self._revision += 1

    def _corrected(self) -> tuple[Surface, Surface]:
        """The published p50 and p99 surfaces, made on first use."""
        upper = self._upper
        p50 = [
            list(map(mul, seconds, map(math.exp, shifts)))
            for seconds, shifts in zip(self._p50, self._shifts, strict=True)
        ]
        p99 = [
            [a * math.exp(max(b * upper, LOWEST_SPREAD)) for a, b in zip(*row, strict=True)]
            for row in zip(p50, self._spreads, strict=True)
        ]
        batches, cores = self.table.batches, tuple(self._cores)
        median = Surface.over(batches, cores, p50)
        return median, Surface.over(batches, cores, p99, above=median)


def mean_error(before: float | None, seconds: float, expected: float) -> float:
    """Add one batch to `before`, an exponential mean of |observed − expected| / expected."""
    error = min(abs(seconds - expected) / expected, _WORST_ERROR)
    return error if before is None else before + _ERROR_GAIN * (error - before)


def _spread(p50: float, p99: float) -> float:
    return max(math.log(p99 / p50), LOWEST_SPREAD)
