"""Converts the predictions of a pool to plain data (`export_times`) and back (`load_times`).

Only this module knows all kinds of predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from slacktide.profiles import (
    BatchLatency,
    ClassedTimes,
    CorrectedTimes,
    LatencyTable,
    ProfileError,
    ShapedTimes,
    reading,
)
from slacktide.profiles.latency_fit import latency_on
from slacktide.profiles.record import plain_sizes, read_signature, read_sizes
from slacktide.recording.layout import LayoutError

Predictions = CorrectedTimes | ClassedTimes | ShapedTimes
"""Kinds of predictions of a recorded pool."""


def export_times(times: Predictions) -> dict[str, Any]:
    """The profile and everything learnt since, ready for JSON. `latency` and `lengths` are null if
    requests are all treated alike; `shapes` is only present if requests differ in shape."""
    if isinstance(times, ShapedTimes):
        return {
            "table": times.table.to_dict(),
            "correction": None,
            "latency": None,
            "lengths": {},  # not null, so that versions without shapes refuse it
            "shapes": {
                "reference": [list(shape) for shape in times.reference],
                "sizes": plain_sizes(times.sizes),
                "learnt": times.export(),
            },
        }
    if isinstance(times, CorrectedTimes):
        point, latency, lengths = times, None, None
    else:
        point, lengths = times.point, times.export()
        counts = sorted({1, *times.table.cores})
        latency = {str(cores): astuple(times.latency(cores)) for cores in counts}
    return {
        "table": times.table.to_dict(),
        "correction": point.export() if point.batches else None,
        "latency": latency,
        "lengths": lengths,
    }


def load_times(data: Mapping[str, Any]) -> Predictions:
    """Make predictions from exported data. Raises LayoutError naming the field."""
    try:
        table = LatencyTable.from_dict(data.get("table"))
        times: Predictions
        shapes = data.get("shapes")
        if shapes is not None:
            shapes = reading.mapping(shapes, "shapes", ("reference", "sizes", "learnt"))
            reference = read_signature(shapes["reference"], "shapes.reference")
            sizes = read_sizes(shapes["sizes"], "shapes.sizes")
            shaped = ShapedTimes(table, reference, sizes)
            shaped.load(shapes["learnt"])
            return shaped
        if data.get("lengths") is None:
            times = point = CorrectedTimes(table)
        else:
            latencies = {
                int(cores): BatchLatency(c0, c1, tuple(sizes))
                for cores, (c0, c1, sizes) in data["latency"].items()
            }
            if not latencies.keys() >= set(table.cores):
                raise KeyError
            times = ClassedTimes(table, latency=lambda cores: latency_on(latencies, table, cores))
            times.load(data["lengths"])
            point = times.point
        if data.get("correction") is not None:
            point.load(data["correction"])
    except ProfileError as error:
        raise LayoutError(f"times: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError):
        raise LayoutError("times.latency: expected [c0, c1, sizes] by number of cores") from None
    return times
