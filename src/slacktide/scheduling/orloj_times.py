"""What Orloj takes the time of a batch to be while it is still open who will be in it (§4.3).

Whoever shares a batch is drawn from all that arrive, whichever application they come from: F is the
mixture of all classes. The histogram in the score of a request of class g is that of a batch with
it in, F_g · F^(k-1). (Both are products of CDFs, which is what Eq. 8 amounts to.) A mean, E[L], is
wanted in two places: in the score, and in line 11, which drops requests and rules out sizes. The
paper says that E[L] "only depends on the batch size": the mean of F^k in both (`batch`). It also
writes line 11 EstimateBatchLatency(r, bs): the mean of F_g · F^(k-1) there (`own_class`) or in both
(`by_class`). Where a pool knows no classes, all requests are one class, with the batch times that
the pool predicts, and the readings are one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from slacktide.engine.ports import BatchTimes
from slacktide.profiles import RunClasses
from slacktide.profiles.distribution import FLOOR, POINTS, expected_max
from slacktide.scheduling.orloj_score import Histogram, Score, Step

Reading: TypeAlias = Literal["batch", "own_class", "by_class"]
"""Where E[L] is that of a batch with the request's own class in it: nowhere, line 11, everywhere.
"""

TAIL = 0.001
"""Probability left out at either end where a histogram is made from quantiles."""

BINS = 48
"""Bins of such a histogram."""


class OrlojTimes:
    """Histograms and scores by class, rows and batch size, for one number of cores. Seconds.

    All of it is worked out when first asked for.
    """

    def __init__(
        self,
        times: BatchTimes,
        cores: int,
        *,
        b: float,
        steps: tuple[Step, ...],
        reading: Reading = "batch",
    ) -> None:
        self._times = times
        self._reading = reading
        self._cores = cores
        self._b = b
        self._steps = steps
        classes = self._classes = times.classes(cores)
        if classes is not None:
            mixture = np.asarray(classes.shares) @ classes.cdfs
            self._mix = np.log(np.maximum(mixture, FLOOR))
        self._histograms: dict[tuple[int, int, int], Histogram] = {}
        self._scores: dict[tuple[int, int, int], Score] = {}

    def histogram(self, of: int, rows: int, size: int) -> Histogram:
        """The time of a batch of `size` rows, `rows` of them of one request of class `of`."""
        key = (of, rows, size)
        found = self._histograms.get(key)
        if found is None:
            classes = self._classes
            found = self._histograms[key] = (
                self._by_rows(size)
                if classes is None
                else self._by_class(classes, of, max(0, size - rows), max(rows, size))
            )
        return found

    def score(self, of: int, rows: int, size: int) -> Score:
        """The priority curve of such a request in such a batch."""
        key = (of, rows, size)
        found = self._scores.get(key)
        if found is None:
            found = self._scores[key] = Score(
                self.histogram(of, rows, size), b=self._b, steps=self._steps
            )
        return found

    def _by_class(self, classes: RunClasses, of: int, others: int, rows: int) -> Histogram:
        latency, step = classes.latency, classes.step
        cdf = np.exp(classes.logs[of] + others * self._mix)
        cdf[0] = 0.0
        edges = [latency.seconds(rows, j * step) for j in range(POINTS)]
        anybody, own = (
            latency.seconds(rows, expected_max(each, step))
            for each in (np.exp((others + 1) * self._mix), cdf)
        )
        return Histogram(
            tuple(edges),
            tuple(cdf.tolist()),
            own if self._reading == "by_class" else anybody,
            anybody if self._reading == "batch" else own,
        )

    def _by_rows(self, rows: int) -> Histogram:
        time = self._times.of(rows, self._cores)
        mean, low = time.expected, time.quantile(TAIL)
        high = max(time.quantile(1.0 - TAIL), low + 1e-6 * mean)
        edges = [low + (high - low) * i / BINS for i in range(BINS + 1)]
        inner = [time.on_time(edge) for edge in edges[1:-1]]
        return Histogram(tuple(edges), (0.0, *inner, 1.0), mean, mean)
