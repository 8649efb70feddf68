"""The engine's constants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How long the engine waits before it calls something dead. Seconds, unless the name says."""

    hang_floor: float = 1.0
    """No batch is taken to hang before this."""
    hang_factor: float = 10.0
    """A batch is taken to hang after this many times its p99."""
    decoding_hang_factor: float = 40.0
    """What is added to that, in times of what decoding its pictures takes at least: slow cases take
    four times as long, and `hang_factor` is on top."""
    start_limit: float = 300.0
    """A replica that is not up after this is killed. It is started again if the version has been up
    before; one that never was is abandoned."""
    backoff_first: float = 0.1
    """Pause before the first restart; doubles with every crash in the window."""
    backoff_most: float = 10.0
    crash_window: float = 60.0
    crash_limit_count: int = 5
    """So many crashes within the window make a version unavailable."""
    convictions_in_a_row_count: int = 10
    """So many requests that crashed their run alone, and no batch finished between, do so too."""
    retry_first: float = 10.0
    """Pause before an unavailable version is tried again; doubles with every try that fails."""
    retry_most: float = 300.0
    crashes_per_request_count: int = 2
    """A request that was running in so many crashes is failed."""
    start_guess: float = 0.5
    """Start-up time assumed of a pool whose replicas have never been up."""
    resize_limit: float = 0.05
    """A lane that is to have more cores starts no batch until it has them, or for so long."""
    fairness_window: float = 5.0
    """How far back lane time counts when models compete for a lane."""
