"""What settings may state of early exits."""

from __future__ import annotations

from typing import Any

import pytest

from slacktide.planning.exits import StatedExits


@pytest.mark.parametrize(
    ("field", "stated"),
    [
        ("accuracy_loss", {"accuracy_loss": 0.0}),
        ("accuracy_loss", {"accuracy_loss": 0.6}),
        ("ramp_budget", {"ramp_budget": 1.5}),
        ("feedback", {"feedback": 0.0}),
        ("ramps", {"ramps": (3, 1)}),
        ("ramps", {"ramps": (1, 1)}),
        ("ramps", {"ramps": (-1,)}),
        ("thresholds", {"ramps": (1, 2), "thresholds": (0.5,)}),
        ("thresholds", {"thresholds": (0.5,)}),
    ],
)
def test_invalid_fields_are_named(field: str, stated: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=field):
        StatedExits(**stated)


def test_ramps_and_their_thresholds_may_be_fixed() -> None:
    assert StatedExits(ramps=(1, 4), thresholds=(0.1, 0.2)).thresholds == (0.1, 0.2)
