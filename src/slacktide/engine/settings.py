"""The engine's constants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits and pauses of the engine, in seconds unless the name says otherwise."""

    hang_floor: float = 1.0
    """Minimum time after which a batch counts as hung."""
    hang_factor: float = 10.0
    """A batch counts as hung after this many times its p99."""
    decoding_hang_factor: float = 40.0
    """A batch's minimum decoding time × this factor is added to the limit. The default is 4, for
    decoders that are four times as slow, × the default of `hang_factor`."""
    start_limit: float = 300.0
    """A replica that is not up after this time is killed. It restarts if the version has been up
    before; otherwise the version is given up."""
    backoff_first: float = 0.1
    """Pause before the first restart; doubles with every crash in the window."""
    backoff_most: float = 10.0
    crash_window: float = 60.0
    crash_limit_count: int = 5
    """Crashes within the window that make a version unavailable."""
    convictions_in_a_row_count: int = 10
    """Number of convictions in a row, without a finished batch in between, that also make a version
    unavailable."""
    retry_first: float = 10.0
    """Pause before the trial of an unavailable version; doubles with every failed trial."""
    retry_most: float = 300.0
    crashes_per_request_count: int = 2
    """A request that ran during this many crashes fails."""
    start_guess: float = 0.5
    """Assumed start-up time of a pool whose replicas have never been up."""
    resize_limit: float = 0.05
    """Maximum time that a growing lane waits for its cores before it starts a batch."""
    fairness_window: float = 5.0
    """Time constant of the average lane time by which models compete for a lane."""
