"""Statistics of versions in the protocol's form, with our additions. Plain numbers, cumulative."""

from __future__ import annotations

from typing import Any

from slacktide.models.calls.model_counters import ComputeSeconds, StageCounters
from slacktide.models.versions import LoadedVersion
from slacktide.planning import ModelBounds
from slacktide.planning.exits import ApplicationStatus, ClassStatus, ExitsStatus
from slacktide.planning.pipelines import PlacementStatus


def stage_statistics(
    version: LoadedVersion, placement: PlacementStatus | None = None
) -> dict[str, Any]:
    """Return our additions for a pipeline: requests of its stages and their placement."""
    stage_stats = []
    for stage, stage_version in version.stages.items():
        sums = version.counters.stages.get(stage) or StageCounters()
        stage_stats.append(
            {
                "stage": stage,
                "model": stage_version.name,
                "outcome_stats": {reason.label: count for reason, count in sums.by_reason.items()},
                "success": _stat(sums.request_s.count, sums.request_s.total),
                "slack": _stat(sums.slack_s.count, sums.slack_s.total),
            }
        )
    return {"stage_stats": stage_stats} | ({} if placement is None else _placed(version, placement))


def _placed(version: LoadedVersion, placement: PlacementStatus) -> dict[str, Any]:
    """Return the placement. Counts are totals of all pipelines, which are placed together."""
    stages = []
    for stage, stage_version in version.stages.items():
        model = stage_version.name
        bounds = placement.within.get(model, ModelBounds())
        stages.append(
            {
                "stage": stage,
                "lanes": list(placement.lanes.get(model, ())),
                "largest_variant": bounds.largest or None,  # null: any
                "most_cores": bounds.cores,  # null: as its settings say
                "early_exits": bounds.exits,
            }
        )
    return {
        "placement": {
            "reason": placement.reason,
            "expected": placement.expected,
            "placements": placement.decided,
            "early_placements": placement.early,
            "moves": placement.moves,
            "rebounds": placement.rebounds,
            "stages": stages,
        }
    }


def model_statistics(version: LoadedVersion) -> dict[str, Any]:
    """Return one entry of `model_stats`."""
    counters = version.counters
    served = counters.end_to_end_s.count
    return {
        "name": version.name,
        "version": version.version,
        "last_inference": counters.last_at_ms,
        "inference_count": counters.rows_served,
        "execution_count": counters.executions,
        "inference_stats": {
            "success": _stat(served, counters.end_to_end_s.total),
            "fail": _stat(counters.failed, counters.failed_s),
            "queue": _stat(served, counters.queue_s.total),
            **_compute(counters.compute),
            # There is no response cache.
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "response_stats": {},
        # Our addition, over HTTP only: Triton's gRPC message has no field for it.
        "outcome_stats": {reason.label: count for reason, count in counters.by_reason.items()},
        "batch_stats": [
            {"batch_size": rows, **_compute(batch)}
            for rows, batch in sorted(counters.by_rows.items())
        ],
        "memory_usage": [],
        **({} if version.family is None else {"variant_stats": _variants(version)}),
    }


def exit_statistics(version: LoadedVersion, status: ExitsStatus | None) -> dict[str, Any]:
    """Return our addition for early exits, over HTTP only; empty without exits in the settings."""
    exits, counters = version.exits, version.counters
    if exits is None:
        return {}
    stats: dict[str, Any] = {"revision": exits.revision, "reason": exits.refusal}
    active: dict[int, float] = {}
    if status is not None:
        stats["reason"] = exits.refusal or status.reason
        stats |= {"accuracy": status.accuracy if status.judged else None, "alarms": status.alarms}
        stats |= {"overhead": status.overhead}
        stats |= {"hold": status.hold, "lacking_rows": status.lacking}
        labels = dict(enumerate(version.labels or version.definition.labels))
        stats["classes"] = [
            {
                "class": of.number,
                "label": labels.get(of.number),
                **_exit_counts(of),
                "state": of.state,
            }
            for of in status.classes
        ]
        stats["applications"] = [
            {"application": of.name, **_exit_counts(of), "leaves": of.may_leave, "hold": of.hold}
            for of in status.applications
        ]
        if (changes := status.answer_changes) is not None:
            stats["changes"] = {
                "judged": changes.judged,
                "missed": changes.missed,
                "caught": changes.caught,
                "delay_p95_frames": changes.delay_p95,
                "alarms": changes.alarms,
            }
        if (policy := status.policy) is not None:
            stats |= {"mode": policy.mode.value, "feedback": policy.feedback}
            active = dict(zip(policy.ramps, policy.thresholds, strict=True))
    stats["ramps"] = [
        {
            "position": ramp,
            "tensor": exits.name(ramp),
            "threshold": active.get(ramp),  # null: not active now
            "request_count": counters.exits.get(ramp, 0),
            "judged_rows": counters.judged.get(ramp, (0, 0))[0],
            "agreeing_rows": counters.judged.get(ramp, (0, 0))[1],
        }
        for ramp in sorted({*active, *counters.exits})
    ]
    return {"exit_stats": stats}


def _exit_counts(of: ClassStatus | ApplicationStatus) -> dict[str, int]:
    return {
        "judged_rows": of.judged,
        "wrong_rows": of.wrong,
        "alarms": of.alarms,
        "lacking_rows": of.lacking,
    }


def _variants(version: LoadedVersion) -> list[dict[str, Any]]:
    """Return our addition for a family: the runs of each variant."""
    variant_stats = []
    for pool in version.pools:
        batches, rows = version.counters.by_variant.get(pool.variant, (0, 0))
        counts = {"inference_count": rows, "execution_count": batches}
        variant_stats.append({"variant": pool.variant, "replicas": len(pool.replicas_up), **counts})
    return variant_stats


def _compute(spent: ComputeSeconds) -> dict[str, dict[str, int]]:
    return {
        "compute_input": _stat(spent.count, spent.input_s),
        "compute_infer": _stat(spent.count, spent.infer_s),
        "compute_output": _stat(spent.count, spent.output_s),
    }


def _stat(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}
