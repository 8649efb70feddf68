"""`RampTrainer`: learns ramps from running sums, by ridge regression of the model's logits on
pooled activations.

A ramp is linear: logits of a row = features · weights + bias. The target is the row's logits in the
frozen model minus their mean, which does not change a softmax. So training needs neither labels nor
examples of every class, only the outer products of a row (the Gram matrix of the features, and
their cross products with the logits). The sums of these products are kept in float64; they grow row
by row, and can decay slowly. Ridge regression agrees with the model about as often as logistic
regression (docs/decisions/0053) and takes a single solve.

**Unseen rows.** The newest rows, a quarter of all and at most 1,024, are held back. Their pooled
features and logits wait, in order of arrival, until newer rows push them into the sums; nothing
else of a row is stored. Ramps are tested on the waiting rows, which are always newer than the rows
they were trained on. This matters for video frames: a random split would put neighbours of each
frame on both sides. The final weights are then solved with the waiting rows too, which resemble
future rows most, so they are slightly better than measured.

**Regularisation.** Features are scaled by their standard deviation, so that one ridge fits every
position. Starting from the middle of a few ridges, the search moves on while the model's answers
become likelier on the older half of the waiting rows. Agreement is measured on the newer half,
which does not influence the choice; the temperature is fitted on both halves.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.exits.errors import ExitError
from slacktide.exits.manifest import Ramp

Rows = NDArray[np.floating[Any]]

LEAST_ROWS = 256
"""Minimum rows for training: an eighth of them measures the agreement."""
MOST_HELD_BACK = 1024
MOST_SUM_BYTES = 1 << 30
"""Maximum bytes of the sums of all positions together."""
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Penalties of a squared weight per row, for features of variance 1."""
_MIDDLE = 3
"""Index of the ridge that is tried first."""
CLEARLY = 3.0
"""Standard deviations by which a ramp must be better to count as better, because many ramps are
compared."""
_BLOCK = 256
"""Number of rows added to the sums at once: multiplying a block of rows costs little more than
multiplying one row."""
_FLAT = 1e-12
"""Variances below this share of the feature's mean square count as zero."""
_MOST_UNUSABLE = 0.1
_STILL = 1e-3
"""Precision of the logarithm of a fitted temperature."""


class RunningSums:
    """Sums over rows of the outer products of features and logits. Newer rows may weigh more."""

    def __init__(self, features: int, classes: int, *, forget: float = 0.0) -> None:
        """`forget`: share of their weight that all earlier rows lose with each added row."""
        if not 0.0 <= forget < 1.0:
            raise ValueError(f"forget: expected 0 to below 1, got {forget}")
        self._keep = 1.0 - forget
        self._gram = np.zeros((features, features))
        self._cross = np.zeros((features, classes))
        self._features = np.zeros(features)
        self._logits = np.zeros(classes)
        self.rows = 0.0
        """Total weight of the rows."""

    def add(self, features: Rows, logits: Rows) -> None:
        """Add rows in order of arrival: `features` [n, features], `logits` [n, classes], finite."""
        x, y = features.astype(np.float64), logits.astype(np.float64)
        y -= y.mean(axis=1, keepdims=True)
        counts = self._keep ** np.arange(len(x) - 1, -1, -1, dtype=np.float64)
        weighted, before = x * counts[:, None], self._keep ** len(x)
        for total, part in (
            (self._gram, weighted.T @ x),
            (self._cross, weighted.T @ y),
            (self._features, weighted.sum(axis=0)),
            (self._logits, counts @ y),
        ):
            total *= before
            total += part
        self.rows = self.rows * before + float(counts.sum())

    def solve(self, ridge: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The weights [features, classes] and bias [classes] that minimise the mean squared error
        plus `ridge` (above 0) × the squared weights of features scaled to variance 1. The bias is
        not penalised. Constant features get weight 0."""
        mean, target = self._features / self.rows, self._logits / self.rows
        covariance = self._gram / self.rows - np.outer(mean, mean)
        cross = self._cross / self.rows - np.outer(mean, target)
        variance = np.diag(covariance)
        varies = variance > _FLAT * (variance + mean * mean)
        scale = np.where(varies, 1.0 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
        system = covariance * scale[:, None] * scale
        system[np.diag_indices_from(system)] += ridge
        weights = scale[:, None] * np.linalg.solve(system, cross * scale[:, None])
        return weights, target - mean @ weights


def fit_temperature(logits: Rows, answers: NDArray[np.int64]) -> tuple[float, float]:
    """Return the temperature, 0.01 to 100, that maximises the likelihood of `answers` [n] under
    softmax(logits [n, classes] ÷ temperature), and the mean negative log-likelihood of the answers
    at it (temperature scaling, Guo et al., ICML 2017).

    One uninformative row is added: if all answers were right, the best temperature would otherwise
    be 0 and every row certain.
    """
    z = logits.astype(np.float32) - logits.max(axis=1, keepdims=True).astype(np.float32)
    right = z[np.arange(len(z)), answers]
    target = (right + z.mean() / len(z)).mean() / (1.0 + 1.0 / len(z))
    low, high = math.log(0.01), math.log(100.0)  # log(1 ÷ temperature): the likelihood has one peak
    while high - low > _STILL:
        at = (low + high) / 2
        odds = np.exp(z * math.exp(at))
        expected = (odds * z).sum(axis=1) / odds.sum(axis=1)
        low, high = (low, at) if expected.mean() > target else (at, high)
    inverse = math.exp((low + high) / 2)
    loss = np.log(np.exp(z * inverse).sum(axis=1)) - right * inverse
    return 1.0 / inverse, float(loss.mean())


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRows:
    """Results of a ramp on unseen rows, in order of arrival."""

    uncertainty: NDArray[np.float64]
    """[n]: 1 − the largest probability."""
    agrees: NDArray[np.bool_]
    """[n]: whether its answer is the model's."""

    @property
    def agreement(self) -> float:
        return float(self.agrees.mean())

    def leaving(self, loss: float) -> float:
        """The largest share of these rows that can leave, the most certain first, so that at most
        `loss` of all rows get an answer other than the model's."""
        order = np.argsort(self.uncertainty, kind="stable")
        wrong = np.cumsum(~self.agrees[order])
        return int((wrong <= loss * len(wrong)).sum()) / len(wrong)

    def clearly_better(self, rival: JudgedRows) -> bool:
        """Whether it agrees significantly more often than another ramp on the same rows
        (McNemar's test on the rows where the two differ)."""
        won = int((self.agrees & ~rival.agrees).sum())
        lost = int((rival.agrees & ~self.agrees).sum())
        return won - lost > CLEARLY * math.sqrt(won + lost)


@dataclass(frozen=True, slots=True, eq=False)
class PooledRows:
    """Rows: the pooled features of each position, and the model's logits."""

    features: tuple[Rows, ...]
    logits: Rows

    def __len__(self) -> int:
        return len(self.logits)

    def part(self, start: int, stop: int) -> PooledRows:
        return PooledRows(
            tuple(part[start:stop] for part in self.features), self.logits[start:stop]
        )

    @staticmethod
    def joined(parts: Sequence[PooledRows] | deque[PooledRows]) -> PooledRows:
        """The rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        features = zip(*(part.features for part in parts), strict=True)
        return PooledRows(
            tuple(np.concatenate(blocks) for blocks in features),
            np.concatenate([part.logits for part in parts]),
        )

    def finite(self) -> PooledRows:
        """The rows in which all numbers are finite."""
        parts = (self.logits, *self.features)
        usable = np.logical_and.reduce([np.isfinite(part).all(axis=1) for part in parts])
        return self._of(np.asarray(usable, bool))

    def halves_by_class(self) -> tuple[PooledRows, PooledRows]:
        """The first and the second half of the rows with each answer of the model."""
        answers = self.logits.argmax(axis=1)
        first: NDArray[np.bool_] = np.zeros(len(answers), bool)
        for answer in np.unique(answers):
            rows = np.flatnonzero(answers == answer)
            first[rows[: len(rows) // 2]] = True
        return self._of(first), self._of(~first)

    def _of(self, chosen: NDArray[np.bool_]) -> PooledRows:
        return PooledRows(tuple(part[chosen] for part in self.features), self.logits[chosen])


class RampTrainer:
    """Learns ramps for all positions of a model from rows in order of arrival."""

    def __init__(
        self, tensors: Sequence[str], costs: Sequence[float], *, forget: float = 0.0
    ) -> None:
        """`tensors` and `costs` (see `Ramp`) have an entry for each position from the front, at
        least one."""
        self._tensors, self._costs = tuple(tensors), tuple(costs)
        self._forget = forget
        self.supplied: PooledRows | None = None
        """More rows to train on, which do not age."""
        self._sums: list[RunningSums] = []
        self._waiting: deque[PooledRows] = deque()
        self._waiting_rows = 0
        self._unusable = 0
        self._unusable_source = ""
        self._answers: NDArray[np.int64] = np.zeros(0, np.int64)
        self.rows = 0
        """Number of usable rows so far."""
        self.judged: tuple[JudgedRows, ...] = ()
        """Results of the last `train` by position, on the newer half of the waiting rows."""

    @property
    def all_rows(self) -> int:
        """Number of rows so far, including those with numbers that are not finite."""
        return self.rows + self._unusable

    def add(self, features: Sequence[Rows], logits: Rows) -> None:
        """Add rows: `features` of each position [n, its features], `logits` [n, classes]. Rows with
        numbers that are not finite are skipped and counted. Raises ExitError if the shapes differ
        from those of earlier rows, or are too large for sums."""
        self._check_shapes(features, logits)
        usable = np.isfinite(logits).all(axis=1)
        if not usable.all():
            self._unusable_source = "the model's logits"
        for tensor, part in zip(self._tensors, features, strict=True):
            finite = np.isfinite(part).all(axis=1)
            if not finite.all() and not self._unusable_source:
                self._unusable_source = f"tensor {tensor!r}"
            usable &= finite
        self._unusable += int((~usable).sum())
        if usable.any():
            rows = PooledRows(tuple(part[usable] for part in features), logits[usable])
            self._answers += np.bincount(rows.logits.argmax(axis=1), minlength=len(self._answers))
            self._waiting.append(rows)
            self._waiting_rows += len(rows)
            self.rows += len(rows)
            self._learn(_BLOCK)

    def fits(self, rows: PooledRows) -> bool:
        """Whether there are `rows`, and their sizes are those of earlier rows."""
        sizes = [part.shape[1] for part in (*rows.features, rows.logits)]
        return len(rows) > 0 and sizes == self._sizes

    def train(self) -> tuple[Ramp, ...]:
        """Train a ramp for each position on all rows. Its agreement and temperature are measured
        with a ramp trained without the waiting rows. Raises ExitError if no ramps can be learnt
        from these rows."""
        self.check_rows()
        self._learn(1)
        older, newer = self._halves()
        both = PooledRows.joined((older, newer))
        trained = [self._ramp(number, older, both) for number in range(len(self._sums))]
        self.judged = tuple(judged for _, judged in trained)
        return tuple(ramp for ramp, _ in trained)

    def judge(self, ramp: Ramp) -> JudgedRows:
        """Test an earlier ramp on the newer half of the waiting rows."""
        newer = self._halves()[1]
        logits = ramp.logits(newer.features[ramp.position])
        return judged_rows(logits / ramp.temperature, newer.logits.argmax(axis=1))

    def _ramp(self, number: int, older: PooledRows, both: PooledRows) -> tuple[Ramp, JudgedRows]:
        sums, features = self._sums[number], older.features[number]
        if self.supplied is not None:
            sums = copy.deepcopy(sums)
            sums.add(self.supplied.features[number], self.supplied.logits)
        labels = older.logits.argmax(axis=1)

        def loss(ridge: float) -> tuple[float, float]:
            weights, bias = sums.solve(ridge)
            return fit_temperature(features @ weights + bias, labels)[1], ridge

        best = loss(RIDGES[_MIDDLE])
        for towards in (RIDGES[_MIDDLE + 1 :], RIDGES[_MIDDLE - 1 :: -1]):
            previous = best
            for ridge in towards:  # continue while the answers become likelier
                if (candidate := loss(ridge))[0] >= best[0]:
                    break
                best = candidate
            if best is not previous:
                break
        weights, bias = sums.solve(best[1])
        logits = both.features[number] @ weights + bias
        answers = both.logits.argmax(axis=1)
        temperature = fit_temperature(logits, answers)[0]
        judged = judged_rows(logits[len(older) :] / temperature, answers[len(older) :])
        whole = copy.deepcopy(sums)
        whole.add(both.features[number], both.logits)
        weights, bias = whole.solve(best[1])
        ramp = Ramp(
            number,
            self._tensors[number],
            weights.astype(np.float32),
            bias.astype(np.float32),
            temperature,
            judged.agreement,
            self._costs[number],
        )
        return ramp, judged

    def _learn(self, least: int) -> None:
        """Move the oldest waiting rows into the sums if `least` or more rows wait beyond the number
        to be held back."""
        beyond = self._waiting_rows - min(MOST_HELD_BACK, self.rows // 4)
        if beyond < least:
            return
        self._waiting_rows -= beyond
        leaving = []
        while beyond:
            first = self._waiting.popleft()
            if len(first) > beyond:
                self._waiting.appendleft(first.part(beyond, len(first)))
                first = first.part(0, beyond)
            leaving.append(first)
            beyond -= len(first)
        rows = PooledRows.joined(leaving)
        for sums, features in zip(self._sums, rows.features, strict=True):
            sums.add(features, rows.logits)

    def _halves(self) -> tuple[PooledRows, PooledRows]:
        rows = PooledRows.joined(self._waiting)
        self._waiting = deque([rows])
        half = len(rows) // 2
        return rows.part(0, half), rows.part(half, len(rows))

    def _check_shapes(self, features: Sequence[Rows], logits: Rows) -> None:
        shapes = [block.shape[1:] for block in (*features, logits)]
        if len(features) != len(self._tensors) or any(len(shape) != 1 for shape in shapes):
            raise ExitError(
                f"expected features of {len(self._tensors)} positions, [rows, features]"
            )
        sizes = [size for (size,) in shapes]
        if not self._sums:
            classes = sizes.pop()
            if classes < 2:
                raise ExitError("the model has only one class: there is nothing to learn")
            nbytes = sum(8 * size * (size + classes) for size in sizes)
            if nbytes > MOST_SUM_BYTES:
                most = f"the limit is {MOST_SUM_BYTES >> 20} MiB: forbid some positions"
                raise ExitError(
                    f"ramps of {classes} classes need {nbytes >> 20} MiB of sums; {most}"
                )
            self._sums = [RunningSums(size, classes, forget=self._forget) for size in sizes]
            self._answers = np.zeros(classes, np.int64)
            self._sizes = [*sizes, classes]
        elif sizes != self._sizes:
            raise ExitError(f"features: expected sizes {self._sizes} as before, got {sizes}")

    def check_rows(self) -> None:
        """Raise ExitError if nothing can be learnt from these rows."""
        if self._unusable > _MOST_UNUSABLE * self.all_rows:
            count = f"{self._unusable} of {self.all_rows} rows"
            raise ExitError(f"{self._unusable_source} has NaN or infinite values in {count}")
        if self.rows < LEAST_ROWS:
            raise ExitError(f"ramps need at least {LEAST_ROWS} rows, got {self.rows}")
        if (self._answers > 0).sum() < 2:
            answer = f"class {int(self._answers.argmax())}"
            raise ExitError(f"the model answers the first {self.rows} rows equally ({answer})")


def judged_rows(logits: Rows, answers: NDArray[np.int64]) -> JudgedRows:
    """Compare logits [n, classes], at temperature 1, with the model's answers [n]."""
    top = logits.max(axis=1, keepdims=True)
    probability = 1.0 / np.exp(logits - top).sum(axis=1)
    return JudgedRows(1.0 - probability, logits.argmax(axis=1) == answers)
