"""The two settings, and how the requests of one run are drawn.

The paper does not say how much of a batch's time is fixed, how high the load is or how bursty. P is
calibrated on Tables 2 and 3: one setting for all of their rows, found by a search for the smallest
error against the printed Orloj and Clockwork columns. In Q padding dominates and the load is lower,
as with a small text encoder on a CPU. P and Q share all else. The *time alone* of a request is the
time of a batch of this request alone. See docs/reproduce.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.simulation import rng_for
from slacktide.lab.workloads import Arrivals, GammaWindows, Lengths, Modes, RateTrace
from slacktide.profiles import BatchLatency
from slacktide_papers.orloj.cases import REFERENCE, lengths_of
from slacktide_papers.orloj.published import TASKS

SAMPLES = 4_000
"""Number of lengths of each application that a scheduler has seen before the run."""

P99 = 0.99

_LONGEST = 6.0
"""Longest duration of a run, as a multiple of the average duration."""


@dataclass(frozen=True, slots=True)
class OrlojSetting:
    """Numbers that all cases share. The unit of time is c1 × the reference length."""

    name: str
    fixed: float
    """c0, in units."""
    load: float
    """Arrival rate × mean time alone of a request of the reference length."""
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    window: float = 100.0
    """Length of a window of arrivals, × the time alone."""
    cv: float = 0.35
    """Coefficient of variation of the rate from window to window."""

    @property
    def fixed_share(self) -> float:
        """c0 as a share of the time alone of a request of the reference length."""
        return self.fixed / (self.fixed + 1.0)

    def latency(self, alone_s: float) -> BatchLatency:
        """Batch times if a request of the reference length takes `alone_s` seconds alone."""
        unit = alone_s / (self.fixed + 1.0)
        return BatchLatency(self.fixed * unit, unit / REFERENCE, self.sizes)

    def arrivals(self, alone_s: float) -> GammaWindows:
        """Arrivals; the same in every case, whatever the lengths of its requests (§5.2)."""
        return GammaWindows(self.load / alone_s, self.window * alone_s, self.cv)


SETTINGS: Mapping[str, OrlojSetting] = {
    "P": OrlojSetting("P", fixed=5.0, load=1.3),
    "Q": OrlojSetting("Q", fixed=1.0, load=1.0),
}

ALONE_MS = TASKS["bart-cnn"].mean_ms
"""Time alone of the reference length: the synthetic cases were run on BART (§5.3, Table 1)."""


@dataclass(frozen=True, slots=True, eq=False)
class OrlojRequests:
    """The requests of one run, in order. Arrays have shape (n,)."""

    latency: BatchLatency
    alone: float
    """Seconds: mean time alone of the reference length."""
    p99_alone: float
    """Seconds: P99 of the time alone of these requests."""
    arrivals: NDArray[np.float64]
    """Seconds from the start."""
    lengths: NDArray[np.float64]
    applications: tuple[str, ...]
    """Application of each request."""
    shares: Mapping[str, float]
    """Share of the arrivals that each application has, in any unit."""
    training: Mapping[str, NDArray[np.float64]]
    """Lengths seen before the run, by application."""


def draw_requests(
    setting: OrlojSetting,
    case: str,
    *,
    seed: int,
    requests: int,
    p99_ms: float | None = None,
    trace: Sequence[float] = (),
) -> OrlojRequests:
    """Draw `requests` requests of `case`; they are the same for every scheduler and every SLO.

    `p99_ms`: P99 of the time alone, to which all times are scaled. `trace`: rates of consecutive
    windows of arrivals, in any unit, instead of the setting's. Raises ReproduceError if there is
    no such case.
    """
    source = lengths_of(case, setting.fixed_share)
    # One random stream per purpose: all cases share arrivals, and all SLOs share everything.
    drawn = source.draw(requests, rng_for(seed, "lengths"))
    long = float(np.quantile(drawn.lengths, P99)) / REFERENCE
    units = setting.fixed + 1.0
    alone = (TASKS[case].mean_ms if case in TASKS else ALONE_MS) / 1e3
    if p99_ms is not None:
        alone = p99_ms / 1e3 * units / (setting.fixed + long)
    about = requests * alone / setting.load
    process = _following(trace, setting, alone, about, seed) if trace else setting.arrivals(alone)
    times = _first(process, requests, about, seed)
    names = _names(source)
    weights = [mode.weight for mode in source.modes] if isinstance(source, Modes) else [1.0]
    return OrlojRequests(
        latency=setting.latency(alone),
        alone=alone,
        p99_alone=alone * (setting.fixed + long) / units,
        arrivals=times,
        lengths=drawn.lengths[: times.size],
        applications=tuple(names[mode] for mode in drawn.modes[: times.size].tolist()),
        shares=dict(zip(names, weights, strict=True)),
        training=_seen_before(source, rng_for(seed, "training")),
    )


def _first(process: Arrivals, count: int, about: float, seed: int) -> NDArray[np.float64]:
    """The first `count` arrivals, or fewer if there are not that many. `about`: seconds that they
    take on average."""
    for factor in (1.5, 3.0, _LONGEST):
        times = process.times(factor * about, rng_for(seed, "arrivals"))
        if times.size >= count:
            break
    return times[:count]


def _following(
    trace: Sequence[float], setting: OrlojSetting, alone: float, about: float, seed: int
) -> RateTrace:
    """Windows of arrivals with the rates of `trace`, from a random place on, scaled to the load.

    "The trace was scaled down such that the incoming rate matches the system load" (§5.2): here the
    average rate of the whole trace matches it, so a busy stretch stays busier than others. The
    trace repeats after its end. `about`: seconds of the trace that a run needs on average.
    """
    place = int(rng_for(seed, "place").integers(len(trace)))
    window = setting.window * alone
    count = len(trace) * math.ceil(_LONGEST * about / window / len(trace))
    rates = np.resize(np.roll(np.asarray(trace), -place), count)
    scale = setting.load / alone / rates.mean()
    return RateTrace(np.arange(count) * window, scale * rates, "rates given")


def _names(source: Lengths) -> tuple[str, ...]:
    return tuple(name or "all" for name in source.names)


def _seen_before(source: Lengths, rng: np.random.Generator) -> Mapping[str, NDArray[np.float64]]:
    """SAMPLES lengths of every application."""
    if not isinstance(source, Modes):
        return {"all": source.draw(SAMPLES, rng).lengths}
    return {
        name: Modes((mode,)).draw(SAMPLES, stream).lengths
        for name, mode, stream in zip(
            _names(source), source.modes, rng.spawn(len(source.modes)), strict=True
        )
    }
