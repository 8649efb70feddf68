"""The predictions of a pool as plain data, and back: one place that knows their kinds."""

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
)
from slacktide.profiles.latency_fit import latency_on
from slacktide.recording.layout import LayoutError

Predictions = CorrectedTimes | ClassedTimes
"""What a pool that is recorded may predict with."""


def export_times(times: Predictions) -> dict[str, Any]:
    """Ready for JSON: the profile, and what has been learnt since it was taken.

    `latency` and `lengths` are null where requests are never distinguished.
    """
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
    """A fresh object that predicts the same. Raises LayoutError naming the field."""
    try:
        table = LatencyTable.from_dict(data.get("table"))
        times: Predictions
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
