"""What holds for every test: a property is judged by what it says, never by its run time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine makes examples slow; only pytest's own timeout ends a test that hangs.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")
