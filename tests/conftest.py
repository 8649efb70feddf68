"""What holds for every test: a property is judged by what it says, never by its run time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from slacktide.planning.scaling.planners import PLANNERS
from slacktide.scheduling import POLICIES

# A busy machine makes examples slow; only pytest's own timeout ends a test that hangs.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")


@pytest.fixture(autouse=True)
def _registries_as_they_were() -> Iterator[None]:
    """What a test imports by name, no other test sees."""
    before = [(one, dict(one), dict(vars(one)), dict(one._offers)) for one in (POLICIES, PLANNERS)]
    yield
    for registry, entries, attributes, offers in before:
        registry.clear()
        registry.update(entries)
        vars(registry).update(attributes, _offers=offers)
