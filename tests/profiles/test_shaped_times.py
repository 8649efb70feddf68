"""ShapedTimes: each input shape takes as long as it was seen to, or as the law over sizes says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from slacktide.domain import Request, Signature
from slacktide.profiles import LatencyTable, ShapedTimes
from slacktide.recording import export_times, load_times

REFERENCE: Signature = ((3, 100, 100),)
TABLE = LatencyTable.linear(0.004, 0.016, 8, cores=(1, 2), spread=1.3)


def square(side: int) -> Signature:
    return ((3, side, side),)


def of(signature: Signature, count: int = 1) -> tuple[Request, ...]:
    return tuple(Request(i, "m", 0.0, 1.0, signature=signature) for i in range(count))


def truth(signature: Signature, rows: int, cores: int = 1) -> float:
    """Linear in the area, with a fixed part."""
    size = signature[0][1] * signature[0][2] / 10_000
    return (0.004 + 0.016 * rows * size) / cores


def run(
    times: ShapedTimes, signature: Signature, batches: int, *, factor: float = 1.0, seed: int = 0
) -> None:
    """Batches of one to eight rows, 5 % scatter."""
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        rows = int(rng.integers(1, 9))
        seconds = truth(signature, rows) * factor * float(np.exp(0.05 * rng.standard_normal()))
        times.observe(seconds, of(signature, rows), rows, 1)


def test_the_profiled_shape_is_predicted_as_profiled() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    assert times.measured(of(REFERENCE)[0])
    assert times.of(4, 1, of(REFERENCE, 4)).expected == TABLE.expected(4, 1)
    assert times.of(4, 1).expected == TABLE.expected(4, 1)


def test_a_shape_is_not_measured_until_it_has_run() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    (big,) = of(square(1000))
    assert not times.measured(big)
    guess = times.of(1, 1, (big,))
    assert guess.p99 == pytest.approx(100.0 * guess.expected)
    times.observe(3.3, (big,), 1, 1)  # a hundred times as long as profiled, and no less
    assert times.measured(big)
    assert times.of(1, 1, (big,)).expected == pytest.approx(3.3)


def test_what_was_learnt_survives_a_file() -> None:
    times = ShapedTimes(TABLE, REFERENCE)
    for side in (50, 100, 200, 333):
        run(times, square(side), 20, factor=1.4)
    run(times, square(70), 3)
    again = load_times(json.loads(json.dumps(export_times(times))))
    assert isinstance(again, ShapedTimes)
    assert again.export() == times.export()
    for side in (50, 70, 100, 200, 333, 400):
        for rows in (1, 5):
            known = times.of(rows, 2, of(square(side)))
            assert again.of(rows, 2, of(square(side))).p99 == pytest.approx(known.p99, rel=0.05)
