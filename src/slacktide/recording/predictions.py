"""The predictions of a pool as plain data, and back: one place that knows their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slacktide.profiles import CorrectedTimes, LatencyTable, ProfileError
from slacktide.recording.errors import LayoutError


def export_times(times: CorrectedTimes) -> dict[str, Any]:
    """Ready for JSON."""
    return {"table": times.table.to_dict()}


def load_times(data: Mapping[str, Any]) -> CorrectedTimes:
    """A fresh object that predicts the same. Raises LayoutError naming the field."""
    try:
        return CorrectedTimes(LatencyTable.from_dict(data.get("table")))
    except ProfileError as error:
        raise LayoutError(f"times: {error}") from None
