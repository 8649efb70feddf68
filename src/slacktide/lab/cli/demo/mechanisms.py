"""Five mechanisms in one pipeline, and how often each acted.

Variants of the detector, early exits of a classifier, times by the width of crops, cores that move,
and placement.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from slacktide.lab.examples import PIPELINES
from slacktide.lab.load.played_calls import MetricSample, get_json
from slacktide.lab.load.spec import Target

EXITS = {"accuracy_loss": "2%", "ramp_budget": "50%"}
"""Of the classifier: on crops as small as the examples' a ramp costs much of what it saves, and
with the default budget it would be given up."""


def equip(models: Path, pipeline: str, cores: int) -> None:
    """Have the models of an example pipeline share a lane of up to so many cores, and the first
    classifier behind the detector be left early."""
    classifier = PIPELINES[pipeline].models[1]
    for name in PIPELINES[pipeline].models:
        file = models / name / "slacktide.yaml"
        settings = yaml.safe_load(file.read_text())
        settings |= {"lane": pipeline, "cores": {"min": 1, "max": cores}}
        if name == classifier:
            settings["early_exit"] = EXITS
        file.write_text(yaml.safe_dump(settings, sort_keys=False))


def acted(
    target: Target, metrics: Sequence[MetricSample], pipeline: str, models: Path
) -> list[dict[str, Any]]:
    """What each mechanism did so far, one entry each: `mechanism`, `stage`, `count` and a sentence,
    `told`."""
    detector, classifier, last = PIPELINES[pipeline].models
    (front,), (left,), (whole,) = (
        get_json(target, f"/v2/models/{name}/stats")["model_stats"]
        for name in (detector, classifier, pipeline)
    )
    found = [
        _variants(front, metrics, detector),
        _exits(left, classifier),
        _widths(models / last, last),
        _cores(metrics, pipeline),
        _placement(whole, pipeline),
    ]
    return [each for each in found if each is not None]


def _variants(
    stats: Mapping[str, Any], metrics: Sequence[MetricSample], model: str
) -> dict[str, Any]:
    used = [each["variant"] for each in stats["variant_stats"] if each["inference_count"]]
    switches = _sum(metrics, "slacktide_variant_switches_total", model=model)
    rescued = _sum(metrics, "slacktide_rescued_total", model=model)
    told = f"{len(used)} sizes answered" + (f", {used[0]} to {used[-1]}" if used else "")
    told += f"; {switches:.0f} times the lane was given another, {rescued:.0f} late requests moved"
    return _entry("variants", model, switches + rescued, told)


def _exits(stats: Mapping[str, Any], model: str) -> dict[str, Any]:
    exits = stats["exit_stats"]
    left = sum(each["request_count"] for each in exits["ramps"])
    answered = sum(stats["outcome_stats"].get(each, 0) for each in ("on_time", "early_exit"))
    told = f"of {answered} requests so many were answered by a ramp"
    if exits.get("accuracy") is not None:
        told += f"; {exits['accuracy']:.1%} of the judged rows as by the whole network"
    return _entry("early exits", model, left, f"{told} ({exits['reason']})")


def _widths(folder: Path, model: str) -> dict[str, Any] | None:
    """None: all of its crops are alike."""
    lengths = yaml.safe_load((folder / "slacktide.yaml").read_text()).get("lengths")
    if not lengths:
        return None
    seconds: dict[float, float] = {}
    for file in folder.glob("*/profile.*.json"):
        record = json.loads(file.read_text()).get("profile", {}).get("record", {})
        sizes = [each for each in record.get("sizes", ()) if each["cores"] == 1]
        most = max((each["rows"] for each in sizes), default=0)
        seconds |= {each["size"]: each["p50_s"] for each in sizes if each["rows"] == most}
    told = f"crops of {lengths[0]} to {lengths[-1]} pixels in width are told apart"
    if len(seconds) > 1:
        spread = max(seconds.values()) / min(seconds.values())
        told += f": a full batch takes {spread:.1f} times as long of the widest"
    return _entry("times by width", model, len(lengths), told)


def _cores(metrics: Sequence[MetricSample], lane: str) -> dict[str, Any]:
    moved = _sum(metrics, "slacktide_resizes_total", outcome="confirmed")
    held = _sum(metrics, "slacktide_lane_core_seconds_total", lane=lane)
    told = f"the lane was given cores, or gave them back; {held:.0f} core-seconds in all"
    return _entry("cores that move", lane, moved, told)


def _placement(stats: Mapping[str, Any], pipeline: str) -> dict[str, Any]:
    placed = stats["placement"]
    bounds = [
        f"{each['stage']} at most {each['largest_variant']}"
        for each in placed["stages"]
        if each["largest_variant"]
    ]
    told = f"{placed['early_placements']} before their time, {placed['rebounds']} other bounds"
    told += f"; now {', '.join(bounds)}" if bounds else ""
    return _entry("placement", pipeline, placed["placements"], f"{told} ({placed['reason']})")


def _sum(metrics: Sequence[MetricSample], name: str, **labels: str) -> float:
    return sum(
        each.value
        for each in metrics
        if each.name == name and labels.items() <= each.labels.items()
    )


def _entry(mechanism: str, stage: str, count: float, told: str) -> dict[str, Any]:
    return {"mechanism": mechanism, "stage": stage, "count": round(count), "told": told}
