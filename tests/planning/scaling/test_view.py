"""Limits of a planner, and how urgent the requests of a model are."""

import math
from types import SimpleNamespace

import pytest

from slacktide.planning.scaling import ModelView, ScalingLimits
from slacktide.profiles import PointTime


@pytest.mark.parametrize(
    ("stated", "field"),
    [
        ({"cores_min": 0}, "cores_min"),
        ({"cores_min": 4, "cores_max": 2}, "cores"),
        ({"replicas_min": 0}, "replicas_min"),
        ({"replicas_min": 3, "replicas_max": 2}, "replicas"),
        ({"batch_max": 0}, "batch_max"),
    ],
)
def test_limits_that_contradict_themselves_are_refused(stated, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        ScalingLimits(**stated)


class TestPressure:
    """The model takes 20 ms alone at the 99th percentile."""

    def of(self, *left: float, rate: float = 0.0, budget: float = 0.1) -> float:
        return ModelView.pressure(
            SimpleNamespace(
                times=SimpleNamespace(of=lambda rows, cores: PointTime(0.02)),
                limits=SimpleNamespace(cores_max=4),
                waiting=[SimpleNamespace(deadline=5.0 + seconds, ready_at=0.0) for seconds in left],
                rate=rate,
                budget=budget,
            ),
            now=5.0,
        )

    def test_it_is_that_of_the_most_urgent_request_that_can_be_saved(self) -> None:
        assert self.of(0.2, 0.04, 0.019) == pytest.approx(0.5)
        assert self.of(math.inf) == 0.0

    def test_future_arrivals_count_only_with_a_rate_and_a_deadline(self) -> None:
        assert self.of(rate=0.0) == 0.0
        assert self.of(rate=1.0) == pytest.approx(0.2)
        assert self.of(rate=1.0, budget=math.inf) == 0.0
