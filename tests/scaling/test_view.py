import pytest

from slacktide.scaling import ScalingLimits


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
