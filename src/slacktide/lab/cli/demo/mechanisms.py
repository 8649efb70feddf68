"""Five mechanisms in one pipeline, and how often each acted.

Variants of the detector, early exits of a classifier, times by the width of crops, cores that move,
and placement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slacktide.lab.examples import PIPELINES
from slacktide.lab.load.played_calls import MetricSample, model_stats
from slacktide.lab.load.spec import Target

EXITS = {"accuracy_loss": "2%", "ramp_budget": "50%"}
"""Settings of the classifier. On crops as small as the examples' a ramp costs much of what it
saves, so that with the default budget it would be dropped."""


@dataclass(frozen=True, slots=True)
class Acted:
    """One mechanism, and how often it acted."""

    mechanism: str
    stage: str
    count: int
    told: str
    """More about it, as a sentence."""


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
) -> Iterator[Acted]:
    """Each mechanism, as the statistics of a server, its metrics and the profiles in its repository
    show it."""
    detector, classifier, last = PIPELINES[pipeline].models

    def counted(name: str, **labels: str) -> float:
        samples = (sample for sample in metrics if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    stats = model_stats(target, detector)
    sizes = [size["variant"] for size in stats["variant_stats"] if size["inference_count"]]
    switches = counted("slacktide_variant_switches_total", model=detector)
    rescued = counted("slacktide_rescued_total", model=detector)
    text = f"{len(sizes)} sizes answered" + (f", {sizes[0]} to {sizes[-1]}" if sizes else "")
    text += f"; {switches:.0f} times the lane was given another, {rescued:.0f} late requests moved"
    yield Acted("variants", detector, round(switches + rescued), text)

    stats = model_stats(target, classifier)
    exits, outcomes = stats["exit_stats"], stats["outcome_stats"]
    answered = outcomes.get("on_time", 0) + outcomes.get("early_exit", 0)
    text = f"of {answered} requests so many were answered by a ramp"
    if exits.get("accuracy") is not None:
        text += f"; {exits['accuracy']:.1%} of the judged rows as by the whole network"
    answers = sum(ramp["request_count"] for ramp in exits["ramps"])
    yield Acted("early exits", classifier, answers, f"{text} ({exits['reason']})")

    if widths := yaml.safe_load((models / last / "slacktide.yaml").read_text()).get("lengths"):
        text = f"crops of {widths[0]} to {widths[-1]} pixels in width are told apart"
        seconds = _full_batches(models / last)
        if len(seconds) > 1:
            spread = max(seconds.values()) / min(seconds.values())
            text += f": a full batch takes {spread:.1f} times as long of the widest"
        yield Acted("times by width", last, len(widths), text)

    resizes = counted("slacktide_resizes_total", outcome="confirmed")
    core_s = counted("slacktide_lane_core_seconds_total", lane=pipeline)
    text = f"the lane was given cores, or gave them back; {core_s:.0f} core-seconds in all"
    yield Acted("cores that move", pipeline, round(resizes), text)

    placement = model_stats(target, pipeline)["placement"]
    bounds = [
        f"{stage['stage']} at most {stage['largest_variant']}"
        for stage in placement["stages"]
        if stage["largest_variant"]
    ]
    text = (
        f"{placement['early_placements']} before their time, {placement['rebounds']} other bounds"
    )
    text += f"; now {', '.join(bounds)}" if bounds else ""
    yield Acted("placement", pipeline, placement["placements"], f"{text} ({placement['reason']})")


def _full_batches(folder: Path) -> dict[float, float]:
    """Seconds of the largest batch on one core by size of its rows, from a model's profiles."""
    seconds: dict[float, float] = {}
    for file in folder.glob("*/profile.*.json"):
        record: Any = json.loads(file.read_text()).get("profile", {}).get("record", {})
        points = [point for point in record.get("sizes", ()) if point["cores"] == 1]
        most = max((point["rows"] for point in points), default=0)
        seconds |= {point["size"]: point["p50_s"] for point in points if point["rows"] == most}
    return seconds
