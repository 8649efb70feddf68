"""`AmdahlModel`: the time of a batch by its rows and cores.

    l(b, c) = γ · b / c + ε / c + δ · b + η          (Sponge §3.1, Eq. 2)

The time is linear in the batch. The part that cores can share falls with 1 / c; the rest does not
(Amdahl's law). Coefficients are not negative, so the time rises with the batch and falls with the
cores.

**The fit** minimises Σ ρ(ln(l / measured)), in two steps (an MM-estimate, Yohai 1987): first with
Huber's ρ, quadratic up to 1.345 standard deviations and linear beyond, which finds the scatter of
the points; then with Tukey's bisquare and that scatter, which ignores points further off than 4.685
standard deviations. The logarithm makes a batch of one count as much as a batch of sixteen, and an
error by a factor of 2 as much as one of ½. Each iteration is a least-squares problem under bounds,
solved exactly: there are four coefficients, so every subset can be tried as the positive ones. (The
paper only says robust regression; docs/decisions/0020 compares.)

**Reach.** A fit is only valid near its points: further away `AmdahlFit.seconds` raises.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slacktide.profiles.distribution import weighted_sum
from slacktide.profiles.least_squares import non_negative
from slacktide.profiles.reading import ProfileError

REACH = 2.0
"""Factor by which batch and cores may exceed the largest measured batch and core count, and cores
may fall below the fewest."""

_Floats = npt.NDArray[np.float64]
_HUBER, _BISQUARE = 1.345, 4.685
"""Limits in standard deviations, with which both functions are 95 % as efficient as least squares
under normal scatter."""
_TO_DEVIATION = 1.4826
"""Ratio of standard deviation to median |residual|, for normal scatter."""
_LEAST_DEVIATION = 1e-3
"""Minimum scatter: no measurement is more precise."""
_STEPS = 50
_STILL = 1e-5
"""Largest relative change of a prediction at which iteration stops."""
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class AmdahlModel:
    """Coefficients in seconds, finite and not negative. Raises ProfileError, naming the field."""

    gamma: float
    """Per row, shared among the cores."""
    epsilon: float
    """Per batch, shared among the cores."""
    delta: float
    """Per row, on one core."""
    eta: float
    """Per batch, on one core."""

    def __post_init__(self) -> None:
        for name in ("gamma", "epsilon", "delta", "eta"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise ProfileError(f"{name}: expected finite and not negative, got {value}")

    def seconds(self, batch: float, cores: float) -> float:
        """Time of a batch of `batch` rows on `cores` cores, both above 0."""
        return (self.gamma * batch + self.epsilon) / cores + self.delta * batch + self.eta

    def per_row(self, cores: float) -> float:
        """Seconds of one more row on `cores` cores."""
        return self.gamma / cores + self.delta


class Timed(NamedTuple):
    """A measured time: seconds of a batch on a number of cores."""

    batch: int
    cores: int
    seconds: float


class FittedPoint(NamedTuple):
    """A measured point and the model's prediction for it."""

    batch: int
    cores: int
    measured: float
    """Seconds."""
    predicted: float
    """Seconds."""
    weight: float
    """Weight in the fit: 1 near the fit, lower the further off the point is, 0 for an outlier."""

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class AmdahlFit:
    """A model with the points it was fitted to, at least one."""

    model: AmdahlModel
    points: tuple[FittedPoint, ...]
    batch_most: int = field(init=False)
    cores_least: int = field(init=False)
    cores_most: int = field(init=False)

    def __post_init__(self) -> None:
        cores = [point.cores for point in self.points]
        object.__setattr__(self, "batch_most", max(point.batch for point in self.points))
        object.__setattr__(self, "cores_least", min(cores))
        object.__setattr__(self, "cores_most", max(cores))

    @property
    def median_error(self) -> float:
        """Median of |predicted − measured| / measured over the points."""
        return statistics.median(abs(point.error) for point in self.points)

    @property
    def worst_error(self) -> float:
        """Largest |predicted − measured| / measured over the points."""
        return max(abs(point.error) for point in self.points)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready; docs/internals/profile-files.md explains each field."""
        names = ("batch", "cores", "measured_s", "predicted_s", "weight")
        return {
            **{f"{name}_s": value for name, value in asdict(self.model).items()},
            "median_error": self.median_error,
            "worst_error": self.worst_error,
            "points": [dict(zip(names, point, strict=True)) for point in self.points],
        }

    def seconds(self, batch: int, cores: int) -> float:
        """Time by the model. Raises ProfileError further than `REACH` from the points."""
        if not 1 <= batch <= REACH * self.batch_most:
            raise ProfileError(
                f"batch {batch} is out of range: measured up to {self.batch_most}, "
                f"predicted up to {REACH:g} × that"
            )
        if not self.cores_least / REACH <= cores <= REACH * self.cores_most:
            raise ProfileError(
                f"{cores} cores are out of range: measured from {self.cores_least} to "
                f"{self.cores_most}, predicted for {REACH:g} × more or fewer"
            )
        return self.model.seconds(batch, cores)


def fit_amdahl(points: Sequence[Timed]) -> AmdahlFit:
    """Fit the model to `points` as the module docstring describes. Pure, deterministic.

    Points may be few, repeat, and leave gaps. Undetermined coefficients are chosen pessimistically:
    with one core count, more cores do not help. Raises ProfileError without points, and for
    batches, cores or seconds that are not positive and finite.
    """
    if not points:
        raise ProfileError("points: expected at least one")
    for point in points:
        if point.batch < 1 or point.cores < 1 or not 0.0 < point.seconds < math.inf:
            raise ProfileError(f"points: expected numbers above 0, got {point}")
    batch, cores, seconds = np.array(points, dtype=np.float64).T
    terms = np.stack([batch / cores, 1.0 / cores, batch, np.ones_like(batch)], axis=1)
    shares = terms / seconds[:, None]
    coefficients, weights = _robust(shares)
    fitted = _sums(shares, coefficients) * seconds
    return AmdahlFit(
        AmdahlModel(*coefficients.tolist()),
        tuple(
            FittedPoint(*point, predicted, weight)
            for point, predicted, weight in zip(
                points, fitted.tolist(), weights.tolist(), strict=True
            )
        ),
    )


def fit_grid(
    batches: Sequence[int], cores: Sequence[int], grid: Sequence[Sequence[float]]
) -> AmdahlFit:
    """Fit the model to a table of seconds, shape (n_batches, n_cores)."""
    return fit_amdahl(
        [
            Timed(batch, count, seconds)
            for batch, row in zip(batches, grid, strict=True)
            for count, seconds in zip(cores, row, strict=True)
        ]
    )


def _robust(shares: _Floats) -> tuple[_Floats, _Floats]:
    """Find x ≥ 0 with ln(shares @ x) nearest to 0 (see the module docstring), and row weights."""
    x = non_negative(shares, np.ones(len(shares)))
    for _ in range(_STEPS):
        q = _sums(shares, x)
        distance = np.abs(_gaps(q))
        deviation = max(_TO_DEVIATION * float(np.median(distance)), _LEAST_DEVIATION)
        x = _step(shares, q, _HUBER * deviation / np.maximum(distance, _HUBER * deviation))
        if _still(q, _sums(shares, x)):
            break
    for _ in range(_STEPS):
        q = _sums(shares, x)
        weights = np.maximum(0.0, 1.0 - (_gaps(q) / (_BISQUARE * deviation)) ** 2) ** 2
        x = _step(shares, q, weights)
        if _still(q, _sums(shares, x)):
            break
    return x, weights


def _sums(shares: _Floats, x: _Floats) -> _Floats:
    """`shares @ x`."""
    return weighted_sum(x, shares.T)


def _gaps(q: _Floats) -> _Floats:
    """ln q, bounded for q near 0."""
    return np.asarray(np.log(np.maximum(q, _NOTHING)))


def _step(shares: _Floats, q: _Floats, weights: _Floats) -> _Floats:
    """Solve least squares of shares @ x − 1, weighted to have the gradient of weights · (ln q)².
    (d/dx of (ln q)² / 2 is ln q / q · shares; that of (q − 1)² / 2 is (q − 1) · shares.)"""
    q = np.maximum(q, _NOTHING)
    near = np.abs(q - 1.0) < 1e-6
    steep = np.where(near, 1.0, np.log(q) / np.where(near, 1.0, q * (q - 1.0)))
    root = np.sqrt(weights * steep)
    return non_negative(shares * root[:, None], root)


def _still(before: _Floats, now: _Floats) -> bool:
    return bool(np.all(np.abs(now - before) <= _STILL * np.maximum(before, _NOTHING)))
