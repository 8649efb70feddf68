"""Statistics in the form of the protocol. Pure: reads tallies."""

from __future__ import annotations

from typing import Any

from slacktide.server.tally import Duration, Tally
from slacktide.server.versions import LoadedVersion


def model_statistics(version: LoadedVersion) -> dict[str, Any]:
    """One entry of `model_stats`; every number a plain one, cumulative since the start."""
    tally = version.tally
    return {
        "name": version.name,
        "version": version.version,
        "last_inference": tally.last_at_ms,
        "inference_count": tally.rows_served,
        "execution_count": tally.executions,
        "inference_stats": _inference(tally),
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _stat(batch.input),
                "compute_infer": _stat(batch.infer),
                "compute_output": _stat(batch.output),
            }
            for rows, batch in sorted(tally.by_rows.items())
        ],
        "memory_usage": [],
    }


def _inference(tally: Tally) -> dict[str, Any]:
    nothing = {"count": 0, "ns": 0}  # there is no response cache
    return {
        "success": _stat(tally.success),
        "fail": _stat(tally.fail),
        "queue": _stat(tally.queue),
        "compute_input": _stat(tally.compute_input),
        "compute_infer": _stat(tally.compute_infer),
        "compute_output": _stat(tally.compute_output),
        "cache_hit": nothing,
        "cache_miss": nothing,
    }


def _stat(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": round(duration.seconds * 1e9)}
